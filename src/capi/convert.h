#pragma once

// Converts the C structs to the C++ ones, field by field, and checks every value that the C++ type cannot hold.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "capi/sized.h"
#include "core/kernel.h"
#include "thalweg/error.h"
#include "thalweg/ranks.h"
#include "thalweg/thalweg.h"

namespace thalweg::capi {

// The largest value of each enum, which all count from 0.
constexpr std::int32_t last_of(DType) { return kNumDTypes - 1; }
constexpr std::int32_t last_of(DeviceType) { return static_cast<std::int32_t>(DeviceType::kMetal); }
constexpr std::int32_t last_of(RowHint) { return static_cast<std::int32_t>(RowHint::kMany); }
constexpr std::int32_t last_of(HeadMap) { return static_cast<std::int32_t>(HeadMap::kTiled); }
constexpr std::int32_t last_of(Rounding) { return static_cast<std::int32_t>(Rounding::kSeed); }
constexpr std::int32_t last_of(StateLayout) { return static_cast<std::int32_t>(StateLayout::kKV); }
constexpr std::int32_t last_of(QkNorm) { return static_cast<std::int32_t>(QkNorm::kRms); }
constexpr std::int32_t last_of(Activation) { return static_cast<std::int32_t>(Activation::kSilu); }
constexpr std::int32_t last_of(RouterScore) { return static_cast<std::int32_t>(RouterScore::kSigmoid); }
constexpr std::int32_t last_of(MatmulPrecision) { return static_cast<std::int32_t>(MatmulPrecision::kFast); }
constexpr std::int32_t last_of(RankTransport) { return static_cast<std::int32_t>(RankTransport::kMpi); }
constexpr std::int32_t last_of(RankSplit) { return static_cast<std::int32_t>(RankSplit::kSequence); }

template <class Enum>
Enum enum_of(std::int32_t value, const char* operation, const char* argument) {
  if (value < 0 || value > last_of(Enum{})) {
    throw Error(operation, argument, "a value from 0 to " + std::to_string(last_of(Enum{})), std::to_string(value));
  }
  return static_cast<Enum>(value);
}

inline Device device_of(const thalweg_device& device, const char* operation, const char* argument) {
  return {enum_of<DeviceType>(device.type, operation, argument), device.index};
}

THALWEG_NAME_OF(stream);

// A call's stream, and the caller's pool that it names. Lives as long as the call.
class CallStream {
 public:
  CallStream(const thalweg_stream* stream, const char* operation) {
    if (stream == nullptr) return;
    const thalweg_stream given = read_sized(stream, thalweg_stream{}, operation, "stream");
    stream_ = {device_of(given.device, operation, "stream"), given.threads, given.native,
               enum_of<RowHint>(given.rows, operation, "stream.rows")};
    if (given.pool == nullptr) return;
    require_pointer(reinterpret_cast<const void*>(given.pool->run), operation, "stream.pool.run");
    pool_ = {given.pool->run, given.pool->user};
    stream_.pool = &pool_;
  }
  CallStream(const CallStream&) = delete;
  CallStream& operator=(const CallStream&) = delete;

  operator const Stream&() const { return stream_; }  // NOLINT(google-explicit-constructor)

 private:
  Stream stream_ = Stream::cpu();
  ThreadPool pool_;
};

// One function per kind of field.
class FromC {
 public:
  explicit FromC(const char* operation) : operation_(operation) {}

  template <class Pointer>
  void operator()(const char* name, BasicTensor<Pointer>& to, const thalweg_tensor& from) const {
    if (from.rank < 0 || from.rank > kMaxRank) {
      throw Error(operation_, name, "a rank from 0 to " + std::to_string(kMaxRank), std::to_string(from.rank));
    }
    if (from.reserved != 0) throw Error(operation_, name, "0 in the reserved field", std::to_string(from.reserved));
    to.data = from.data;
    to.alignment = from.alignment;
    to.dtype = enum_of<DType>(from.dtype, operation_, name);
    to.device = device_of(from.device, operation_, name);
    to.rank = from.rank;
    for (std::size_t i = 0; i < static_cast<std::size_t>(from.rank); ++i) {
      to.shape[i] = from.shape[i];
      to.strides[i] = from.strides[i];
    }
  }
  void operator()(const char*, int& to, std::int32_t from) const { to = from; }
  // What is beyond an int is out of range for the operation too.
  void operator()(const char*, int& to, std::int64_t from) const {
    to = static_cast<int>(std::clamp<std::int64_t>(from, INT32_MIN, INT32_MAX));
  }
  void operator()(const char*, float& to, float from) const { to = from; }
  void operator()(const char*, bool& to, bool from) const { to = from; }
  void operator()(const char*, bool& to, std::int64_t from) const { to = from != 0; }
  void operator()(const char*, std::optional<float>& to, const float* from) const {
    if (from != nullptr) to = *from;
  }
  void operator()(const char*, GateInputs& to, const thalweg_gate_inputs& from) const;
  template <class Enum>
  requires std::is_enum_v<Enum>
  void operator()(const char* name, Enum& to, std::int32_t from) const { to = enum_of<Enum>(from, operation_, name); }

 private:
  const char* operation_;
};

// Stores the defaults of a C++ struct in its C mirror, which must be all zeros.
struct DefaultsToC {
  template <class Pointer>
  void operator()(const char*, const BasicTensor<Pointer>&, thalweg_tensor&) const {}
  void operator()(const char*, const GateInputs&, thalweg_gate_inputs&) const {}
  void operator()(const char*, const std::optional<float>&, const float*&) const {}
  void operator()(const char*, int from, std::int32_t& to) const { to = from; }
  void operator()(const char*, int from, std::int64_t& to) const { to = from; }
  void operator()(const char*, float from, float& to) const { to = from; }
  void operator()(const char*, bool from, bool& to) const { to = from; }
  void operator()(const char*, bool from, std::int64_t& to) const { to = from ? 1 : 0; }
  template <class Enum>
  requires std::is_enum_v<Enum>
  void operator()(const char*, Enum from, std::int32_t& to) const { to = static_cast<std::int32_t>(from); }
};

}  // namespace thalweg::capi
