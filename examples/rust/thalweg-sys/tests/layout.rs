//! Every struct of src/lib.rs has the size and the offsets that the C compiler gives the header's.
//!
//! Needs cc (or CC), and the header: in THALWEG_INCLUDE_DIR, or where pkg-config says.

use std::env;
use std::fmt::Write;
use std::mem::{size_of, MaybeUninit};
use std::process::Command;
use thalweg_sys::*;

fn include_directory() -> String {
    env::var("THALWEG_INCLUDE_DIR").unwrap_or_else(|_| {
        let output = Command::new("pkg-config")
            .args(["--variable=includedir", "thalweg"])
            .output()
            .expect("pkg-config");
        String::from_utf8(output.stdout)
            .expect("a path in UTF-8")
            .trim()
            .to_owned()
    })
}

/// Appends "name size offset..." as this crate sees it, and C that prints the same.
macro_rules! layout {
    ($rust:ident, $c:ident, $name:ident { $($field:ident),* }) => {{
        let value = MaybeUninit::<$name>::uninit();
        let base = value.as_ptr();
        write!($rust, "{} {}", stringify!($name), size_of::<$name>()).unwrap();
        write!($c, "printf(\"{0} %zu\", sizeof({0}));", stringify!($name)).unwrap();
        $(
            let field = stringify!($field).trim_start_matches("r#");
            // SAFETY: an address within the value; nothing is read.
            let offset = unsafe { std::ptr::addr_of!((*base).$field) as usize } - base as usize;
            write!($rust, " {}:{}", field, offset).unwrap();
            write!($c, "printf(\" {1}:%zu\", offsetof({0}, {1}));", stringify!($name), field).unwrap();
        )*
        $rust.push('\n');
        $c.push_str("puts(\"\");\n");
    }};
}

#[test]
fn structs_are_those_of_the_header() {
    let (mut rust, mut c) = (String::new(), String::new());
    layout!(rust, c, thalweg_device { r#type, index });
    layout!(rust, c, thalweg_thread_pool { run, user });
    layout!(
        rust,
        c,
        thalweg_stream {
            struct_size,
            device,
            threads,
            rows,
            native,
            pool
        }
    );
    layout!(
        rust,
        c,
        thalweg_tensor {
            data,
            dtype,
            rank,
            device,
            shape,
            strides,
            alignment,
            reserved
        }
    );
    layout!(
        rust,
        c,
        thalweg_quantize_args {
            struct_size,
            values,
            blocks
        }
    );
    layout!(
        rust,
        c,
        thalweg_linear_args {
            struct_size,
            x,
            weight,
            bias,
            y,
            precision
        }
    );
    layout!(
        rust,
        c,
        thalweg_sampling {
            struct_size,
            temperature,
            top_k,
            top_p,
            min_p,
            repeat_penalty,
            repeat_last,
            seed
        }
    );
    layout!(
        rust,
        c,
        thalweg_generated {
            struct_size,
            tokens,
            reason,
            prompt_tokens,
            prefill_seconds,
            steps,
            decode_seconds
        }
    );

    let folder = env::temp_dir().join(format!("thalweg-sys-layout-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let source = folder.join("layout.c");
    let program = folder.join("layout");
    let head = "#include <stddef.h>\n#include <stdio.h>\n#include \"thalweg/thalweg.h\"\nint main(void) {\n";
    std::fs::write(&source, format!("{head}{c}return 0;\n}}\n")).unwrap();
    let status = Command::new(env::var("CC").unwrap_or_else(|_| "cc".to_owned()))
        .args(["-std=c11", "-I", &include_directory(), "-o"])
        .args([&program, &source])
        .status()
        .expect("cc");
    assert!(status.success());
    let output = Command::new(&program).output().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), rust);
}
