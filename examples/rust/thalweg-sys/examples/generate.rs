//! Text from a model file: generate MODEL PROMPT

use std::ffi::CString;
use std::io::Write;
use std::os::raw::{c_char, c_void};
use std::ptr::{null, null_mut};
use thalweg_sys::*;

unsafe extern "C" fn print(_user: *mut c_void, bytes: *const c_char, count: usize) -> bool {
    let text = std::slice::from_raw_parts(bytes as *const u8, count);
    let mut output = std::io::stdout();
    output.write_all(text).and_then(|()| output.flush()).is_ok()
}

struct Model(*mut thalweg_model);
impl Drop for Model {
    fn drop(&mut self) {
        unsafe { thalweg_model_free(self.0) }
    }
}

struct Sequence(*mut thalweg_sequence);
impl Drop for Sequence {
    fn drop(&mut self) {
        unsafe { thalweg_sequence_free(self.0) }
    }
}

fn main() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().collect();
    let (path, prompt) = match arguments.as_slice() {
        [_, path, prompt] => (path, prompt),
        _ => return Err("usage: generate MODEL PROMPT".to_owned()),
    };
    let path = CString::new(path.as_str()).map_err(|error| error.to_string())?;
    // SAFETY: handles are freed once, by Drop, and pointers outlive the calls that they are given to.
    unsafe {
        if thalweg_abi_version() < THALWEG_ABI_VERSION {
            return Err("the library is older than this program".to_owned());
        }
        let mut model = Model(null_mut());
        check(thalweg_model_load(path.as_ptr(), null(), &mut model.0))?;
        let (mut tokens, mut count) = (vec![0_i32; 512], 0);
        let text = prompt.as_ptr() as *const c_char;
        check(thalweg_tokenize(
            model.0,
            text,
            prompt.len(),
            true,
            tokens.as_mut_ptr(),
            tokens.len(),
            &mut count,
        ))?;
        if count > tokens.len() {
            return Err(format!(
                "the prompt has {count} tokens, more than {}",
                tokens.len()
            ));
        }
        let mut sequence = Sequence(null_mut());
        check(thalweg_sequence_start(model.0, &mut sequence.0))?;
        let mut result = initialized(thalweg_generated_init_sized);
        check(thalweg_generate(
            model.0,
            sequence.0,
            tokens.as_ptr(),
            count,
            null(),
            24,
            Some(print),
            null_mut(),
            &mut result,
        ))?;
        println!("\n{} tokens", result.tokens);
    }
    Ok(())
}
