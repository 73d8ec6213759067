// Devices, memory and dtypes of the C ABI.

#include <algorithm>
#include <array>

#include "capi/convert.h"
#include "capi/errors.h"
#include "thalweg/backend.h"
#include "thalweg/device_memory.h"
#include "thalweg/quant.h"

using thalweg::DType;
using namespace thalweg::capi;

// The C enums and limits have the values of the C++ ones.
static_assert(THALWEG_MAX_RANK == thalweg::kMaxRank);
static_assert(THALWEG_MXFP4 == last_of(DType{}) && THALWEG_METAL == last_of(thalweg::DeviceType{}));
static_assert(THALWEG_ROWS_MANY == last_of(thalweg::RowHint{}));
static_assert(THALWEG_HEAD_MAP_TILED == last_of(thalweg::HeadMap{}));
static_assert(THALWEG_ROUNDING_SEED == last_of(thalweg::Rounding{}));
static_assert(THALWEG_STATE_KV == last_of(thalweg::StateLayout{}));
static_assert(THALWEG_QK_NORM_RMS == last_of(thalweg::QkNorm{}));
static_assert(THALWEG_ACTIVATION_SILU == last_of(thalweg::Activation{}));
static_assert(THALWEG_ROUTER_SIGMOID == last_of(thalweg::RouterScore{}));
static_assert(THALWEG_MATMUL_FAST == last_of(thalweg::MatmulPrecision{}));
#define THALWEG_SAME_DTYPE(name) static_assert(THALWEG_##name == static_cast<int>(DType::k##name))
THALWEG_SAME_DTYPE(F32);
THALWEG_SAME_DTYPE(F16);
THALWEG_SAME_DTYPE(BF16);
THALWEG_SAME_DTYPE(I32);
THALWEG_SAME_DTYPE(Q4_0);
THALWEG_SAME_DTYPE(Q4_1);
THALWEG_SAME_DTYPE(Q5_0);
THALWEG_SAME_DTYPE(Q5_1);
THALWEG_SAME_DTYPE(Q8_0);
THALWEG_SAME_DTYPE(Q2_K);
THALWEG_SAME_DTYPE(Q3_K);
THALWEG_SAME_DTYPE(Q4_K);
THALWEG_SAME_DTYPE(Q5_K);
THALWEG_SAME_DTYPE(Q6_K);
THALWEG_SAME_DTYPE(IQ4_NL);
THALWEG_SAME_DTYPE(IQ4_XS);
THALWEG_SAME_DTYPE(MXFP4);
#undef THALWEG_SAME_DTYPE

struct thalweg_memory {
  thalweg::DeviceMemory memory;
};

thalweg_status thalweg_device_type_available(int32_t type, bool* available, const char** reason) {
  return guarded([&] {
    const auto wanted = enum_of<thalweg::DeviceType>(type, "device_type_available", "type");
    for (const thalweg::BackendInfo& backend : thalweg::backends()) {
      if (backend.type != wanted) continue;
      if (available != nullptr) *available = backend.available;
      thread_state().text = backend.reason;
      if (reason != nullptr) *reason = thread_state().text.c_str();
    }
  });
}

void thalweg_stream_init_sized(thalweg_stream* stream, size_t size) { init_sized(thalweg_stream{}, stream, size); }

thalweg_status thalweg_synchronize(const thalweg_stream* stream) {
  return guarded([&] { thalweg::synchronize(CallStream(stream, "synchronize")); });
}

thalweg_status thalweg_select_instruction_set(const char* name) {
  return guarded([&] {
    require_pointer(name, "select_instruction_set", "name");
    thalweg::select_instruction_set(name);
  });
}

thalweg_status thalweg_select_kernel(const char* operation, const char* kernel) {
  return guarded([&] {
    require_pointer(operation, "select_kernel", "operation");
    require_pointer(kernel, "select_kernel", "kernel");
    thalweg::select_kernel(operation, kernel);
  });
}

thalweg_tensor thalweg_tensor_of(void* data, int32_t dtype, thalweg_device device, int32_t rank, const int64_t* shape) {
  thalweg_tensor tensor{};
  if (shape == nullptr) return tensor;
  tensor.rank = rank;  // also one that is out of range: a call refuses it, which would take rank 0 for an absent tensor
  if (rank < 1 || rank > THALWEG_MAX_RANK) return tensor;
  tensor.data = data;
  tensor.dtype = dtype;
  tensor.device = device;
  std::int64_t stride = 1;
  for (int i = rank - 1; i >= 0; --i) {
    tensor.shape[i] = shape[i];
    tensor.strides[i] = stride;
    stride *= std::max<std::int64_t>(shape[i], 1);
  }
  return tensor;
}

static bool is_dtype(int32_t dtype) { return dtype >= 0 && dtype < thalweg::kNumDTypes; }

int64_t thalweg_bytes_of(int32_t dtype, int64_t count) {
  return is_dtype(dtype) ? thalweg::bytes_of(static_cast<DType>(dtype), count) : -1;
}

const char* thalweg_dtype_name(int32_t dtype) {
  return is_dtype(dtype) ? thalweg::dtype_name(static_cast<DType>(dtype)).data() : nullptr;
}

bool thalweg_can_pack(int32_t dtype) { return is_dtype(dtype) && thalweg::can_pack(static_cast<DType>(dtype)); }

thalweg_status thalweg_memory_create(thalweg_device device, size_t bytes, thalweg_memory** memory) {
  return guarded([&] {
    require_pointer(memory, "memory_create", "memory");
    *memory = new thalweg_memory{thalweg::DeviceMemory(device_of(device, "memory_create", "device"), bytes)};
  });
}

void* thalweg_memory_data(const thalweg_memory* memory) { return memory != nullptr ? memory->memory.data() : nullptr; }
size_t thalweg_memory_bytes(const thalweg_memory* memory) { return memory != nullptr ? memory->memory.bytes() : 0; }
void thalweg_memory_free(thalweg_memory* memory) { delete memory; }

thalweg_status thalweg_copy_to_device(const thalweg_stream* stream, void* device_memory, const void* host_memory,
                                      size_t bytes) {
  return guarded(
      [&] { thalweg::copy_to_device(CallStream(stream, "copy_to_device"), device_memory, host_memory, bytes); });
}

thalweg_status thalweg_copy_to_host(const thalweg_stream* stream, void* host_memory, const void* device_memory,
                                    size_t bytes) {
  return guarded([&] { thalweg::copy_to_host(CallStream(stream, "copy_to_host"), host_memory, device_memory, bytes); });
}
