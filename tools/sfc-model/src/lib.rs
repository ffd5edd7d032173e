//! A software model of an EF10 network function.
