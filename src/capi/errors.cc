#include "capi/errors.h"

namespace thalweg::capi {

ThreadState& thread_state() {
  thread_local ThreadState state;
  return state;
}

thalweg_status fail(thalweg_status status, const char* message) noexcept {
  try {
    thread_state().operation.clear();
    thread_state().argument.clear();
    thread_state().message = message;
    return status;
  } catch (...) {
    return THALWEG_OUT_OF_MEMORY;
  }
}

thalweg_status fail(const Error& error, thalweg_status status) noexcept {
  try {
    thread_state().message = error.what();
    thread_state().operation = error.operation();
    thread_state().argument = error.argument();
    return status;
  } catch (...) {
    return THALWEG_OUT_OF_MEMORY;
  }
}

}  // namespace thalweg::capi

using thalweg::capi::thread_state;

int32_t thalweg_abi_version() { return THALWEG_ABI_VERSION; }
const char* thalweg_version() { return THALWEG_VERSION_STRING; }
const char* thalweg_error_message() { return thread_state().message.c_str(); }
const char* thalweg_error_operation() { return thread_state().operation.c_str(); }
const char* thalweg_error_argument() { return thread_state().argument.c_str(); }
