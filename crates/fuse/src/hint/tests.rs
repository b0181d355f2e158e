//! Hints from start to end, without a kernel.
