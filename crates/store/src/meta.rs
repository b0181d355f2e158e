//! What is known of names, attributes and directories.
