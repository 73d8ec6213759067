#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "thalweg/error.h"
#include "thalweg/tensor.h"

namespace thalweg {

// A size that several arguments share: the first argument that names it binds it, the others must agree.
struct Dim {
  std::string_view name;
  std::int64_t value = -1;

  bool bound() const { return value >= 0; }
};

inline constexpr std::initializer_list<DType> kFloatTypes = {DType::kF32, DType::kF16, DType::kBF16};
// Of caches of keys and values.
inline constexpr std::initializer_list<DType> kCacheTypes = {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0};
extern const std::span<const DType> kWeightTypes;  // everything but I32

// Validates the arguments of one call; every member throws thalweg::Error at the first violation. Arguments are
// registered as they are checked, finish() then compares their memory.
class Check {
 public:
  enum class Data : bool { kShapesOnly, kPresent };

  Check(std::string_view operation, const Stream& stream, Data data)
      : operation_(operation), stream_(stream), data_(data) {
    arguments_.reserve(kUsualArguments);
  }

  // True if pointers must be valid and values may be read on the host.
  bool host_values() const { return data_ == Data::kPresent && stream_.device.type == DeviceType::kCpu; }

  // A required tensor: dtype among `dtypes`, shape as the dims say (binding those still unbound), innermost contiguous.
  template <class... Dims>
  void input(std::string_view argument, const ConstTensor& tensor, std::span<const DType> dtypes, Dims&... dims) {
    Dim* const list[] = {&dims...};
    check(argument, tensor, dtypes, list, Role::kInput);
  }
  template <class... Dims>
  void input(std::string_view argument, const ConstTensor& tensor, std::initializer_list<DType> dtypes, Dims&... dims) {
    input(argument, tensor, std::span(dtypes.begin(), dtypes.size()), dims...);
  }
  // The same for a tensor that is written: no element may be reached twice.
  template <class... Dims>
  void output(std::string_view argument, const ConstTensor& tensor, std::span<const DType> dtypes, Dims&... dims) {
    Dim* const list[] = {&dims...};
    check(argument, tensor, dtypes, list, Role::kOutput);
  }
  template <class... Dims>
  void output(std::string_view argument, const ConstTensor& tensor, std::initializer_list<DType> dtypes,
              Dims&... dims) {
    output(argument, tensor, std::span(dtypes.begin(), dtypes.size()), dims...);
  }

  // `output` may be the very same view as `input` (in place); other overlaps stay errors.
  void may_alias(std::string_view output, std::string_view input) { allowed_.push_back({output, input}); }

  // Anything else that is wrong: if (...) check.fail(...), so that a good call composes no text.
  [[noreturn]] void fail(std::string_view argument, std::string_view expected, std::string_view given) const {
    throw Error(operation_, argument, expected, given);
  }

  // Outputs against everything, and the workspace against everything.
  void finish() const;
  void workspace(const Workspace& workspace, std::size_t needed) const;

  // Optional cu_seqlens i32 [N+1]: binds N (to B without it) and, on the host, checks the values against T.
  void cu_seqlens(const ConstTensor& cu_seqlens, const Dim& batch, const Dim& tokens, Dim& sequences);
  // Optional state_indices i32 [N]: -1 or a slot below `slots`, no slot twice.
  void state_indices(const ConstTensor& indices, Dim& sequences, std::int64_t slots);
  // Optional fault i32 [1].
  void fault(const Tensor& fault);

 private:
  enum class Role : bool { kInput, kOutput };
  // The bytes that a view reaches: [begin, end) and the strides of its dimensions.
  struct Footprint {
    struct Axis {
      std::int64_t stride = 0;  // bytes
      std::int64_t extent = 0;
    };

    Footprint() = default;
    explicit Footprint(const ConstTensor& tensor);
    std::span<const Axis> axes() const { return {axes_.data(), num_axes_}; }
    // Bytes that the dimensions of strides less than `below` span.
    std::int64_t inner_span(std::int64_t below) const;

    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    std::int64_t element = 1;  // bytes of an element or a block

   private:
    std::array<Axis, kMaxRank> axes_{};  // extents above 1, descending strides
    std::size_t num_axes_ = 0;
  };
  struct Argument {
    std::string_view name;
    ConstTensor tensor;
    Footprint footprint;
    Role role;
  };
  struct Pair {
    std::string_view output;
    std::string_view input;
  };

  void check(std::string_view argument, const ConstTensor& tensor, std::span<const DType> dtypes,
             std::span<Dim* const> dims, Role role);
  // Sizes and strides have to fit into 64 bits before anything is computed from them.
  void check_extents(std::string_view argument, const ConstTensor& tensor) const;
  void check_memory(std::string_view argument, const ConstTensor& tensor, const Footprint& footprint, Role role) const;
  // Whether two views may share a byte.
  static bool overlap(const Footprint& a, const Footprint& b);
  bool allowed(const Argument& output, const Argument& other) const;

  std::string_view operation_;
  Stream stream_;
  Data data_;
  static constexpr std::size_t kUsualArguments = 24;  // more of them cost an allocation each time they grow
  std::vector<Argument> arguments_;
  std::vector<Pair> allowed_;
};

}  // namespace thalweg
