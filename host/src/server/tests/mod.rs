//! The server through real sockets, over a fake engine and a stub of a text model.

mod access;
mod chat;
mod client;
mod completions;
mod failures;
mod streams;
mod stub;
