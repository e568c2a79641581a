//! The server through real sockets, with a real tokenizer over an engine without a model.

mod access;
mod chat;
mod client;
mod completions;
mod failures;
mod harness;
mod streams;
