//! Writes on their way: answered at once, merged, sent later.
