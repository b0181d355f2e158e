//! Order, errors and room.

use super::*;
