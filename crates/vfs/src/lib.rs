//! The one file-system interface that every part of hither stacks on.
