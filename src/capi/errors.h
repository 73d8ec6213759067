#pragma once

// Turns exceptions into statuses: every function of the C ABI that can fail uses guarded().

#include <exception>
#include <new>
#include <string>

#include "thalweg/engine.h"
#include "thalweg/error.h"
#include "thalweg/thalweg.h"

namespace thalweg::capi {

// Of this thread's last failure. Text that a function returns lives in `text` until the thread's next call.
struct ThreadState {
  std::string message;
  std::string operation;
  std::string argument;
  std::string text;
};

ThreadState& thread_state();

thalweg_status fail(thalweg_status status, const char* message) noexcept;
thalweg_status fail(const Error& error, thalweg_status status = THALWEG_INVALID) noexcept;

// Runs fn and turns what it throws into a status.
template <class Function>
thalweg_status guarded(Function&& fn) noexcept {
  try {
    fn();
    return THALWEG_OK;
  } catch (const Refused& error) {
    return fail(error, THALWEG_REFUSED);
  } catch (const Error& error) {
    return fail(error);
  } catch (const std::bad_alloc&) {
    return fail(THALWEG_OUT_OF_MEMORY, "out of memory");
  } catch (const std::exception& error) {
    return fail(THALWEG_INTERNAL, error.what());
  } catch (...) {
    return fail(THALWEG_INTERNAL, "an unknown exception");
  }
}

// Throws Error if `pointer` is NULL.
inline void require_pointer(const void* pointer, const char* function, const char* argument) {
  if (pointer == nullptr) throw Error(function, argument, "a pointer", "NULL");
}

}  // namespace thalweg::capi
