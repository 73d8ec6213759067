#pragma once

// Between THALWEG_API_BEGIN and THALWEG_API_END of a header stands what the shared library exports. Everything else is
// compiled with hidden visibility. Used by the library's headers only; C and C++.

#if defined(__GNUC__)
#define THALWEG_API_BEGIN _Pragma("GCC visibility push(default)")
#define THALWEG_API_END _Pragma("GCC visibility pop")
#define THALWEG_HIDDEN __attribute__((visibility("hidden")))  // a type between the two that stays inside
#else
#define THALWEG_API_BEGIN
#define THALWEG_API_END
#define THALWEG_HIDDEN
#endif
