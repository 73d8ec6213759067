//! The part of `thalweg/thalweg.h` that the examples beside it use, declared by hand: no bindgen, no libclang.
//!
//! Names, contracts and the order of the fields are the header's. What to add when more is needed: the struct, its
//! `_init_sized`, and the operation's functions; `tests/layout.rs` compares every struct here with the C compiler's.
//! A struct that begins with `struct_size` has to be prepared by its `_init_sized`, see [`initialized`].

#![allow(non_camel_case_types)]

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::raw::{c_char, c_void};

pub const THALWEG_ABI_VERSION: i32 = 5;

pub type thalweg_status = u32;
pub const THALWEG_OK: thalweg_status = 0;

// thalweg_device_type, thalweg_dtype, thalweg_matmul_precision: fields that hold an enum are i32.
pub const THALWEG_CPU: i32 = 0;
pub const THALWEG_F32: i32 = 0;
pub const THALWEG_Q8_0: i32 = 8;
pub const THALWEG_MATMUL_EXACT: i32 = 0;
pub const THALWEG_MATMUL_FAST: i32 = 1;

pub const THALWEG_MAX_RANK: usize = 5;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct thalweg_device {
    pub r#type: i32,
    pub index: i32,
}

#[repr(C)]
pub struct thalweg_thread_pool {
    pub run: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            workers: i32,
            work: Option<unsafe extern "C" fn(context: *mut c_void, worker: i32)>,
            context: *mut c_void,
        ),
    >,
    pub user: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct thalweg_stream {
    pub struct_size: usize,
    pub device: thalweg_device,
    pub threads: i32,
    pub rows: i32,
    pub native: *mut c_void,
    pub pool: *const thalweg_thread_pool,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct thalweg_tensor {
    pub data: *mut c_void,
    pub dtype: i32,
    pub rank: i32,
    pub device: thalweg_device,
    pub shape: [i64; THALWEG_MAX_RANK],
    pub strides: [i64; THALWEG_MAX_RANK],
    pub alignment: i32,
    pub reserved: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct thalweg_quantize_args {
    pub struct_size: usize,
    pub values: thalweg_tensor,
    pub blocks: thalweg_tensor,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct thalweg_linear_args {
    pub struct_size: usize,
    pub x: thalweg_tensor,
    pub weight: thalweg_tensor,
    pub bias: thalweg_tensor,
    pub y: thalweg_tensor,
    pub precision: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct thalweg_sampling {
    pub struct_size: usize,
    pub temperature: f32,
    pub top_k: i32,
    pub top_p: f32,
    pub min_p: f32,
    pub repeat_penalty: f32,
    pub repeat_last: i32,
    pub seed: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct thalweg_generated {
    pub struct_size: usize,
    pub tokens: i64,
    pub reason: i32,
    pub prompt_tokens: i64,
    pub prefill_seconds: f64,
    pub steps: i64,
    pub decode_seconds: f64,
}

#[repr(C)]
pub struct thalweg_model_options {
    _private: [u8; 0],
}

#[repr(C)]
pub struct thalweg_model {
    _private: [u8; 0],
}

#[repr(C)]
pub struct thalweg_sequence {
    _private: [u8; 0],
}

pub type thalweg_text_callback =
    Option<unsafe extern "C" fn(user: *mut c_void, bytes: *const c_char, count: usize) -> bool>;

extern "C" {
    pub fn thalweg_abi_version() -> i32;
    pub fn thalweg_version() -> *const c_char;
    pub fn thalweg_error_message() -> *const c_char;

    pub fn thalweg_stream_init_sized(stream: *mut thalweg_stream, size: usize);
    pub fn thalweg_tensor_of(
        data: *mut c_void,
        dtype: i32,
        device: thalweg_device,
        rank: i32,
        shape: *const i64,
    ) -> thalweg_tensor;
    pub fn thalweg_bytes_of(dtype: i32, count: i64) -> i64;

    pub fn thalweg_quantize_args_init_sized(args: *mut thalweg_quantize_args, size: usize);
    pub fn thalweg_quantize(
        args: *const thalweg_quantize_args,
        workspace: *mut c_void,
        workspace_bytes: usize,
        stream: *const thalweg_stream,
    ) -> thalweg_status;

    pub fn thalweg_linear_args_init_sized(args: *mut thalweg_linear_args, size: usize);
    pub fn thalweg_linear_workspace_size(
        args: *const thalweg_linear_args,
        stream: *const thalweg_stream,
        bytes: *mut usize,
    ) -> thalweg_status;
    pub fn thalweg_linear_explain(
        args: *const thalweg_linear_args,
        stream: *const thalweg_stream,
        text: *mut *const c_char,
    ) -> thalweg_status;
    pub fn thalweg_linear(
        args: *const thalweg_linear_args,
        workspace: *mut c_void,
        workspace_bytes: usize,
        stream: *const thalweg_stream,
    ) -> thalweg_status;

    pub fn thalweg_sampling_init_sized(sampling: *mut thalweg_sampling, size: usize);
    pub fn thalweg_generated_init_sized(generated: *mut thalweg_generated, size: usize);
    pub fn thalweg_model_load(
        path: *const c_char,
        options: *const thalweg_model_options,
        model: *mut *mut thalweg_model,
    ) -> thalweg_status;
    pub fn thalweg_model_free(model: *mut thalweg_model);
    pub fn thalweg_tokenize(
        model: *const thalweg_model,
        text: *const c_char,
        length: usize,
        parse_special: bool,
        tokens: *mut i32,
        capacity: usize,
        count: *mut usize,
    ) -> thalweg_status;
    pub fn thalweg_sequence_start(
        model: *mut thalweg_model,
        sequence: *mut *mut thalweg_sequence,
    ) -> thalweg_status;
    pub fn thalweg_sequence_free(sequence: *mut thalweg_sequence);
    pub fn thalweg_generate(
        model: *mut thalweg_model,
        sequence: *mut thalweg_sequence,
        prompt: *const i32,
        prompt_count: usize,
        sampling: *const thalweg_sampling,
        max_tokens: i64,
        callback: thalweg_text_callback,
        user: *mut c_void,
        result: *mut thalweg_generated,
    ) -> thalweg_status;
}

/// A struct as its `_init_sized` prepares it: `initialized(thalweg_linear_args_init_sized)`.
pub fn initialized<T>(init_sized: unsafe extern "C" fn(*mut T, usize)) -> T {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: the library writes every byte of a struct whose size it is told.
    unsafe {
        init_sized(value.as_mut_ptr(), std::mem::size_of::<T>());
        value.assume_init()
    }
}

/// `Err` with the message of the call that failed.
pub fn check(status: thalweg_status) -> Result<(), String> {
    if status == THALWEG_OK {
        return Ok(());
    }
    // SAFETY: the message ends with a zero and is valid until this thread's next failure.
    let message = unsafe { CStr::from_ptr(thalweg_error_message()) };
    Err(message.to_string_lossy().into_owned())
}
