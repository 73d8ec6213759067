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

Check::Footprint::Footprint(const ConstTensor& tensor)
    : begin(reinterpret_cast<std::uintptr_t>(tensor.data)), end(begin) {
  if (tensor.size() == 0) return;
  const DTypeInfo info = dtype_info(tensor.dtype);
  element = info.block_bytes;
  for (int i = 0; i < tensor.rank; ++i) {
    const bool innermost = i == tensor.rank - 1;
    const std::int64_t extent = innermost ? tensor.dim(i) / info.block_size : tensor.dim(i);
    const std::int64_t stride = innermost ? info.block_bytes : bytes_of(tensor.dtype, tensor.stride(i));
    if (extent <= 1) continue;
    // Insertion sort: mostly in order already.
    std::size_t at = num_axes_++;
    for (; at > 0 && axes_[at - 1].stride < stride; --at) axes_[at] = axes_[at - 1];
    axes_[at] = {stride, extent};
  }
  std::int64_t span = element;
  for (const Axis& axis : axes()) span += axis.stride * (axis.extent - 1);
  end = begin + static_cast<std::uintptr_t>(span);
}

std::int64_t Check::Footprint::inner_span(std::int64_t below) const {
  std::int64_t span = element;
  for (const Axis& axis : axes()) {
    if (axis.stride < below) span += axis.stride * (axis.extent - 1);
  }
  return span;
}

// Exact for slices of one packed tensor, which interleave without touching: if some stride of both divides all larger
// ones, the residues of the addresses decide.
bool Check::overlap(const Footprint& a, const Footprint& b) {
  if (a.begin >= b.end || b.begin >= a.end) return false;
  for (const auto& period : a.axes()) {
    const std::int64_t s = period.stride;
    const auto periodic = [s](const Footprint& f) {
      return f.inner_span(s) <= s && std::all_of(f.axes().begin(), f.axes().end(),
                                                 [s](auto axis) { return axis.stride < s || axis.stride % s == 0; });
    };
    if (s <= 0 || !periodic(a) || !periodic(b)) continue;
    const std::int64_t offset = (static_cast<std::int64_t>(b.begin - a.begin) % s + s) % s;
    if (offset >= a.inner_span(s) && offset + b.inner_span(s) <= s) return false;
  }
  return true;
}

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
  check_extents(argument, tensor);
  const Footprint footprint(tensor);
  if ((tensor.alignment & (tensor.alignment - 1)) != 0 || tensor.alignment < 0) {
    fail(argument, "an alignment that is a power of two, or 0", std::to_string(tensor.alignment));
  }
  check_memory(argument, tensor, footprint, role);
  arguments_.push_back({argument, tensor, footprint, role});
}

void Check::check_extents(std::string_view argument, const ConstTensor& tensor) const {
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
}

void Check::check_memory(std::string_view argument, const ConstTensor& tensor, const Footprint& footprint,
                         Role role) const {
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
    std::int64_t span = footprint.element;
    const auto axes = footprint.axes();
    for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
      if (axis->stride < span) fail(argument, "an output whose elements do not overlap", to_string(tensor));
      span += axis->stride * (axis->extent - 1);
    }
  }
  if (data_ == Data::kPresent) {
    if (tensor.data == nullptr) fail(argument, "memory for " + to_string(tensor), "a null pointer");
    const std::int64_t of_elements = is_block_format(tensor.dtype) ? 1 : bytes_of(tensor.dtype, 1);
    const std::int64_t alignment = std::max<std::int64_t>(of_elements, tensor.alignment);
    if (footprint.begin % static_cast<std::uintptr_t>(alignment) != 0) {
      fail(argument,
           "data aligned to " + std::to_string(alignment) + " bytes" +
               (tensor.alignment > of_elements ? ", as the view states" : ", the size of an element"),
           "an address that is not");
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
      if (overlap(output.footprint, other.footprint)) {
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
    const Footprint& footprint = argument.footprint;
    const bool is_empty = footprint.begin == footprint.end;
    if (!is_empty && footprint.begin < begin + needed && begin < footprint.end) {
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
  if (bounds.value < 1) fail("cu_seqlens", "at least one element", to_string(cu_seqlens));
  if (batch.value != 1) fail("cu_seqlens", "packed sequences, B = 1", "B = " + std::to_string(batch.value));
  sequences.value = bounds.value - 1;
  if (!host_values()) return;
  const auto* values = static_cast<const std::int32_t*>(cu_seqlens.data);
  if (values[0] != 0) fail("cu_seqlens", "a first element of 0", std::to_string(values[0]));
  for (std::int64_t n = 0; n < sequences.value; ++n) {
    if (values[n] > values[n + 1]) {
      fail("cu_seqlens", "values that do not decrease",
           std::to_string(values[n]) + " before " + std::to_string(values[n + 1]));
    }
  }
  if (values[sequences.value] != tokens.value) {
    fail("cu_seqlens", "a last element of T = " + std::to_string(tokens.value),
         std::to_string(values[sequences.value]));
  }
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
    if (!(values[n] >= -1 && values[n] < slots)) {
      fail("state_indices", "-1 or a slot below " + std::to_string(slots), std::to_string(values[n]));
    }
    if (values[n] < 0) continue;
    if (used[static_cast<std::size_t>(values[n])]) {
      fail("state_indices", "slots that differ from each other", "slot " + std::to_string(values[n]) + " twice");
    }
    used[static_cast<std::size_t>(values[n])] = true;
  }
}

}  // namespace thalweg
