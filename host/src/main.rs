//! The tensorfold program.

fn main() -> std::process::ExitCode {
    tensorfold::cli::main()
}
