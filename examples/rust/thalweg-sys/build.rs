//! Where libthalweg is: THALWEG_LIB_DIR, or what pkg-config says.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=THALWEG_LIB_DIR");
    let directory = env::var("THALWEG_LIB_DIR").unwrap_or_else(|_| pkg_config_libdir());
    println!("cargo:rustc-link-search=native={directory}");
    println!("cargo:rustc-link-lib=dylib=thalweg");
    // Programs of this package find the library there; others decide for themselves.
    println!("cargo:rustc-link-arg=-Wl,-rpath,{directory}");
}

fn pkg_config_libdir() -> String {
    let output = Command::new("pkg-config")
        .args(["--variable=libdir", "thalweg >= 0.2"])
        .output()
        .expect("neither THALWEG_LIB_DIR nor pkg-config says where libthalweg is");
    assert!(
        output.status.success(),
        "pkg-config knows no thalweg >= 0.2"
    );
    String::from_utf8(output.stdout)
        .expect("a path in UTF-8")
        .trim()
        .to_owned()
}
