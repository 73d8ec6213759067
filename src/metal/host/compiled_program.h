#pragma once

// What a translated .metal file shows to the executor. C++14: kernels are compiled in Metal's dialect.

namespace thalweg {
namespace metal {

enum { kMaxBuffers = 24, kMaxThreadgroupBuffers = 1, kMaxKernels = 32, kMaxConstants = 48 };

// The arguments of a kernel that are memory.
struct Memory {
  void* buffer[kMaxBuffers];
  void* scratch[kMaxThreadgroupBuffers];  // threadgroup memory
};

// The arguments that say which thread this is, under the names of their attributes.
struct Place {
  unsigned threadgroup_position_in_grid[3];
  unsigned threadgroups_per_grid[3];
  unsigned thread_index_in_threadgroup;
  unsigned simdgroup_index_in_threadgroup;
  unsigned simdgroups_per_threadgroup;
  unsigned thread_index_in_simdgroup;
};

struct CompiledKernel {
  const char* name;
  void (*call)(const Memory& memory, const Place& place);
  unsigned buffers;   // bit i: the kernel has a buffer i
  unsigned writable;  // bit i: it may write to it
  unsigned max_threads;
};

struct CompiledConstant {
  const char* name;
  int* value;
};

struct CompiledProgram {
  CompiledKernel kernels[kMaxKernels];        // ends at a null name
  CompiledConstant constants[kMaxConstants];  // value is null behind the last
};

}  // namespace metal
}  // namespace thalweg
