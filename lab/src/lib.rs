//! The laboratory: real kernels, real servers, counted RPCs.
