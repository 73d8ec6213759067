#include "ops/check.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace thalweg {
namespace {

constexpr std::array kWeightTypeList = {
    DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0,   DType::kQ5_1,   DType::kQ8_0,
    DType::kQ2_K, DType::kQ3_K, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kIQ4_NL, DType::kIQ4_XS, DType::kMXFP4,
};

// The bytes a view reaches: [begin, end) and the byte strides of its dimensions.
struct Footprint {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  struct Axis {
    std::int64_t stride;  // bytes
    std::int64_t extent;
  };
  std::vector<Axis> axes;  // descending strides, extents above 1

  std::int64_t inner_span(std::int64_t below) const {
    std::int64_t span = element;
    for (const Axis& axis : axes) {
      if (axis.stride < below) span += axis.stride * (axis.extent - 1);
    }
    return span;
  }
  std::int64_t element = 1;
};

Footprint footprint(const ConstTensor& tensor) {
  Footprint result;
  result.begin = reinterpret_cast<std::uintptr_t>(tensor.data);
  result.end = result.begin;
  if (tensor.size() == 0) return result;
  const DTypeInfo info = dtype_info(tensor.dtype);
  result.element = info.block_bytes;
  for (int i = 0; i < tensor.rank; ++i) {
    const bool innermost = i == tensor.rank - 1;
    const std::int64_t extent = innermost ? tensor.dim(i) / info.block_size : tensor.dim(i);
    const std::int64_t stride = innermost ? info.block_bytes : bytes_of(tensor.dtype, tensor.stride(i));
    if (extent > 1) result.axes.push_back({stride, extent});
  }
  std::sort(result.axes.begin(), result.axes.end(), [](auto a, auto b) { return a.stride > b.stride; });
  std::int64_t span = result.element;
  for (const auto& axis : result.axes) span += axis.stride * (axis.extent - 1);
  result.end = result.begin + static_cast<std::uintptr_t>(span);
  return result;
}

// Whether two views may share a byte. Exact for slices of one packed tensor, which interleave without touching: if some
// stride of both divides all larger ones, their residues tell.
bool overlap(const ConstTensor& a, const ConstTensor& b) {
  const Footprint fa = footprint(a);
  const Footprint fb = footprint(b);
  if (fa.begin >= fb.end || fb.begin >= fa.end) return false;
  for (const auto& period : fa.axes) {
    const std::int64_t s = period.stride;
    const auto periodic = [s](const Footprint& f) {
      return f.inner_span(s) <= s && std::all_of(f.axes.begin(), f.axes.end(),
                                                 [s](auto axis) { return axis.stride < s || axis.stride % s == 0; });
    };
    if (s <= 0 || !periodic(fa) || !periodic(fb)) continue;
    const std::int64_t offset = (static_cast<std::int64_t>(fb.begin - fa.begin) % s + s) % s;
    if (offset >= fa.inner_span(s) && offset + fb.inner_span(s) <= s) return false;
  }
  return true;
}

std::string describe(std::span<const DType> dtypes) {
  if (dtypes.size() == kWeightTypeList.size()) return "any dtype but I32";
  std::string text;
  if (dtypes.size() == 2 && dtypes[0] == dtypes[1]) dtypes = dtypes.first(1);
  for (std::size_t i = 0; i < dtypes.size(); ++i) {
    if (i > 0) text += i + 1 == dtypes.size() ? " or " : ", ";
    text += dtype_name(dtypes[i]);
  }
  return text;
}

std::string describe(std::span<Dim* const> dims) {
  std::string text = "[";
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (i > 0) text += ',';
    text += dims[i]->name;
    if (dims[i]->bound()) text += "=" + std::to_string(dims[i]->value);
  }
  return text + "]";
}

}  // namespace

const std::span<const DType> kWeightTypes = kWeightTypeList;

void Check::check(std::string_view argument, const ConstTensor& tensor, std::span<const DType> dtypes,
                  std::span<Dim* const> dims, Role role) {
  const auto expected = [&] { return describe(dtypes) + " " + describe(dims); };
  bool matches = tensor.rank == static_cast<int>(dims.size());
  matches = matches && std::find(dtypes.begin(), dtypes.end(), tensor.dtype) != dtypes.end();
  for (int i = 0; matches && i < tensor.rank; ++i) {
    const Dim& dim = *dims[static_cast<std::size_t>(i)];
    matches = tensor.dim(i) >= 0 && (!dim.bound() || dim.value == tensor.dim(i));
  }
  if (!matches) fail(argument, expected(), to_string(tensor));
  for (int i = 0; i < tensor.rank; ++i) dims[static_cast<std::size_t>(i)]->value = tensor.dim(i);
  if (tensor.device != stream_.device) {
    fail(argument, "a tensor on the stream's device, " + std::string(device_type_name(stream_.device.type)),
         to_string(tensor) + " on " + std::string(device_type_name(tensor.device.type)));
  }
  check_memory(argument, tensor, role);
  arguments_.push_back({argument, tensor, role});
}

void Check::check_memory(std::string_view argument, const ConstTensor& tensor, Role role) const {
  constexpr std::int64_t kMaxElements = std::int64_t{1} << 48;
  std::int64_t reach = 0;
  std::int64_t count = 1;
  for (int i = 0; i < tensor.rank; ++i) {
    const std::int64_t extent = tensor.dim(i);
    if (extent <= 1) continue;
    if (tensor.stride(i) < 0 || extent > kMaxElements || tensor.stride(i) > kMaxElements ||
        extent - 1 > (kMaxElements - reach) / std::max<std::int64_t>(tensor.stride(i), 1)) {
      fail(argument, "strides between 0 and 2^48 elements in all", to_string(tensor));
    }
    reach += (extent - 1) * tensor.stride(i);
    if (count > kMaxElements / extent) fail(argument, "at most 2^48 elements", to_string(tensor));
    count *= extent;
  }
  if (tensor.size() == 0) return;
  if (tensor.dim(tensor.rank - 1) > 1 && tensor.stride(tensor.rank - 1) != 1) {
    fail(argument, "a contiguous innermost dimension", to_string(tensor));
  }
  if (is_block_format(tensor.dtype)) {
    const int block = dtype_info(tensor.dtype).block_size;
    bool whole = tensor.dim(tensor.rank - 1) % block == 0;
    for (int i = 0; i + 1 < tensor.rank; ++i) whole &= tensor.dim(i) <= 1 || tensor.stride(i) % block == 0;
    if (!whole) {
      fail(argument, "rows of whole blocks of " + std::to_string(block) + " weights", to_string(tensor));
    }
  }
  if (role == Role::kOutput) {
    const Footprint f = footprint(tensor);
    std::int64_t span = f.element;
    for (auto axis = f.axes.rbegin(); axis != f.axes.rend(); ++axis) {
      if (axis->stride < span) fail(argument, "an output whose elements do not overlap", to_string(tensor));
      span += axis->stride * (axis->extent - 1);
    }
  }
  if (data_ == Data::kPresent) {
    if (tensor.data == nullptr) fail(argument, "memory for " + to_string(tensor), "a null pointer");
    const std::size_t alignment =
        is_block_format(tensor.dtype) ? 1 : static_cast<std::size_t>(bytes_of(tensor.dtype, 1));
    if (reinterpret_cast<std::uintptr_t>(tensor.data) % alignment != 0) {
      fail(argument, "data aligned to its elements", "an address that is not");
    }
  }
}

bool Check::allowed(const Argument& output, const Argument& other) const {
  const bool listed = std::any_of(allowed_.begin(), allowed_.end(), [&](const Pair& pair) {
    return pair.output == output.name && pair.input == other.name;
  });
  return listed && output.tensor.data == other.tensor.data && output.tensor.dtype == other.tensor.dtype &&
         output.tensor.shape == other.tensor.shape && output.tensor.strides == other.tensor.strides;
}

void Check::finish() const {
  if (data_ != Data::kPresent) return;
  for (const Argument& output : arguments_) {
    if (output.role != Role::kOutput) continue;
    for (const Argument& other : arguments_) {
      if (&other == &output || allowed(output, other) || allowed(other, output)) continue;
      if (overlap(output.tensor, other.tensor)) {
        fail(output.name, "memory of its own", "memory that overlaps " + std::string(other.name));
      }
    }
  }
}

void Check::workspace(const Workspace& workspace, std::size_t needed) const {
  if (workspace.bytes < needed || (needed > 0 && workspace.data == nullptr)) {
    fail("workspace", std::to_string(needed) + " bytes",
         workspace.data == nullptr ? "none" : std::to_string(workspace.bytes) + " bytes");
  }
  if (needed == 0) return;
  if (reinterpret_cast<std::uintptr_t>(workspace.data) % kWorkspaceAlignment != 0) {
    fail("workspace", "an address aligned to " + std::to_string(kWorkspaceAlignment) + " bytes", "one that is not");
  }
  const auto begin = reinterpret_cast<std::uintptr_t>(workspace.data);
  for (const Argument& argument : arguments_) {
    const Footprint f = footprint(argument.tensor);
    if (f.begin < begin + needed && begin < f.end) {
      fail("workspace", "memory of its own", "memory that overlaps " + std::string(argument.name));
    }
  }
}

void Check::cu_seqlens(const ConstTensor& cu_seqlens, const Dim& batch, const Dim& tokens, Dim& sequences) {
  if (!cu_seqlens.defined()) {
    sequences.value = batch.value;
    return;
  }
  Dim bounds{"N+1"};
  input("cu_seqlens", cu_seqlens, {DType::kI32}, bounds);
  require(bounds.value >= 1, "cu_seqlens", "at least one element", to_string(cu_seqlens));
  require(batch.value == 1, "cu_seqlens", "packed sequences, B = 1", "B = " + std::to_string(batch.value));
  sequences.value = bounds.value - 1;
  if (!host_values()) return;
  const auto* values = static_cast<const std::int32_t*>(cu_seqlens.data);
  require(values[0] == 0, "cu_seqlens", "a first element of 0", std::to_string(values[0]));
  for (std::int64_t n = 0; n < sequences.value; ++n) {
    require(values[n] <= values[n + 1], "cu_seqlens", "values that do not decrease",
            std::to_string(values[n]) + " before " + std::to_string(values[n + 1]));
  }
  require(values[sequences.value] == tokens.value, "cu_seqlens",
          "a last element of T = " + std::to_string(tokens.value), std::to_string(values[sequences.value]));
}

void Check::fault(const Tensor& fault) {
  Dim one{"1", 1};
  if (fault.defined()) output("fault", fault, {DType::kI32}, one);
}

void Check::state_indices(const ConstTensor& indices, Dim& sequences, std::int64_t slots) {
  input("state_indices", indices, {DType::kI32}, sequences);
  if (!host_values()) return;
  const auto* values = static_cast<const std::int32_t*>(indices.data);
  std::vector<bool> used(static_cast<std::size_t>(slots), false);
  for (std::int64_t n = 0; n < sequences.value; ++n) {
    require(values[n] >= -1 && values[n] < slots, "state_indices", "-1 or a slot below " + std::to_string(slots),
            std::to_string(values[n]));
    if (values[n] < 0) continue;
    require(!used[static_cast<std::size_t>(values[n])], "state_indices", "slots that differ from each other",
            "slot " + std::to_string(values[n]) + " twice");
    used[static_cast<std::size_t>(values[n])] = true;
  }
}

}  // namespace thalweg
