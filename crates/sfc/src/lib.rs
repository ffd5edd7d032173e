//! A driver for EF10 network functions.
