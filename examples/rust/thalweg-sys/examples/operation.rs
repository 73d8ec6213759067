//! A matmul over Q8_0 blocks, compared with plain arithmetic in f64; then the error of a call that is wrong.

use std::os::raw::c_void;
use std::ptr::{null, null_mut};
use thalweg_sys::*;

const T: usize = 5;
const N: usize = 48;
const K: usize = 64;

/// Values in -1..1 that repeat from run to run.
fn values(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1664525).wrapping_add(1013904223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn tensor<E>(data: &mut [E], dtype: i32, shape: [usize; 2]) -> thalweg_tensor {
    let device = thalweg_device {
        r#type: THALWEG_CPU,
        index: 0,
    };
    let shape = [shape[0] as i64, shape[1] as i64];
    // SAFETY: reads two numbers, and keeps the address only.
    unsafe {
        thalweg_tensor_of(
            data.as_mut_ptr() as *mut c_void,
            dtype,
            device,
            2,
            shape.as_ptr(),
        )
    }
}

fn linear(args: &thalweg_linear_args) -> Result<(), String> {
    let mut bytes = 0;
    // SAFETY: tensors of `args` are slices that outlive the call; a null stream is the CPU.
    unsafe {
        check(thalweg_linear_workspace_size(args, null(), &mut bytes))?;
        let mut scratch = vec![0_u8; bytes + 64];
        let aligned = scratch.as_mut_ptr().add(scratch.as_ptr().align_offset(64));
        check(thalweg_linear(args, aligned as *mut c_void, bytes, null()))
    }
}

fn main() -> Result<(), String> {
    let mut x = values(T * K, 1);
    let mut weight = values(N * K, 2);
    let mut y = vec![f32::NAN; T * N];
    // SAFETY: asks for a number.
    let mut blocks = vec![0_u8; unsafe { thalweg_bytes_of(THALWEG_Q8_0, (N * K) as i64) } as usize];

    let mut pack = initialized(thalweg_quantize_args_init_sized);
    pack.values = tensor(&mut weight, THALWEG_F32, [N, K]);
    pack.blocks = tensor(&mut blocks, THALWEG_Q8_0, [N, K]);
    // SAFETY: both tensors are slices that outlive the call.
    check(unsafe { thalweg_quantize(&pack, null_mut(), 0, null()) })?;

    let mut args = initialized(thalweg_linear_args_init_sized);
    args.x = tensor(&mut x, THALWEG_F32, [T, K]);
    args.weight = tensor(&mut blocks, THALWEG_Q8_0, [N, K]);
    args.y = tensor(&mut y, THALWEG_F32, [T, N]);
    linear(&args)?;

    let (mut error, mut size) = (0.0, 0.0);
    for t in 0..T {
        for n in 0..N {
            let exact: f64 = (0..K)
                .map(|k| f64::from(x[t * K + k]) * f64::from(weight[n * K + k]))
                .sum();
            error += (f64::from(y[t * N + n]) - exact).powi(2);
            size += exact.powi(2);
        }
    }
    let relative = (error / size).sqrt();
    println!("relative error {relative:.1e}");
    // What rounding weights to 8 bits costs; NaN fails too.
    if !(relative > 1e-4 && relative < 1e-2) {
        return Err("the result is not the product".to_owned());
    }

    args.y = tensor(&mut y, THALWEG_F32, [T, N - 1]);
    match linear(&args) {
        Ok(()) => Err("a wrong shape was accepted".to_owned()),
        Err(message) => {
            println!("refused, as it should be: {message}");
            Ok(())
        }
    }
}
