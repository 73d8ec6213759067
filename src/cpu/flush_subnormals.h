#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace thalweg::cpu {

// As long as it lives, this thread's numbers below the smallest normal one count as zero. Gates that forget leave many
// of them, and each costs processors of Intel a hundred cycles or more.
class FlushSubnormals {
 public:
#if defined(__x86_64__)
  FlushSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kInputs | kResults); }
  ~FlushSubnormals() { _mm_setcsr(before_); }

 private:
  static constexpr unsigned kInputs = 1U << 6;
  static constexpr unsigned kResults = 1U << 15;
  unsigned before_;

 public:
#else
  FlushSubnormals() {}   // NOLINT(modernize-use-equals-default): a variable of it is used
  ~FlushSubnormals() {}  // NOLINT(modernize-use-equals-default)
#endif
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;
};

}  // namespace thalweg::cpu
