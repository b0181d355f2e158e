//! Golden bytes and properties of whole NFSv4 messages.
