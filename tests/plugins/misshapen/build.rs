//! Lets this crate's types pass for those of another build of `tensorfold-plugin-api`: a layout names the package
//! that its type comes from, and a vendor's changed copy of the crate has the crate's own name and version.

use std::path::Path;

fn main() {
    let manifest = Path::new("../../../plugin-api/Cargo.toml");
    println!("cargo:rerun-if-changed={}", manifest.display());
    let text = std::fs::read_to_string(manifest).expect("the manifest of tensorfold-plugin-api can be read");
    let version = text
        .lines()
        .find_map(|line| line.strip_prefix("version = \"")?.strip_suffix('"'))
        .expect("the manifest of tensorfold-plugin-api states a version");
    println!("cargo:rustc-env=CARGO_PKG_NAME=tensorfold-plugin-api");
    println!("cargo:rustc-env=CARGO_PKG_VERSION={version}");
}
