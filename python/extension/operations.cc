// Operations on arrays of any library with DLPack or the buffer protocol. Nothing is copied.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/fields.h"
#include "extension/bindings.h"
#include "thalweg/backend.h"
#include "thalweg/device_memory.h"
#include "thalweg/error.h"

namespace nb = nanobind;

namespace thalweg::python {
namespace {

// The names that options have in Python, in the order of the C++ enums.
template <class Enum>
struct EnumNames;
template <>
struct EnumNames<HeadMap> {
  static constexpr std::array<std::string_view, 3> kNames{"unset", "grouped", "tiled"};
};
template <>
struct EnumNames<Rounding> {
  static constexpr std::array<std::string_view, 2> kNames{"f32", "seed"};
};
template <>
struct EnumNames<StateLayout> {
  static constexpr std::array<std::string_view, 2> kNames{"vk", "kv"};
};
template <>
struct EnumNames<QkNorm> {
  static constexpr std::array<std::string_view, 3> kNames{"none", "l2", "rms"};
};
template <>
struct EnumNames<Activation> {
  static constexpr std::array<std::string_view, 2> kNames{"none", "silu"};
};
template <>
struct EnumNames<RouterScore> {
  static constexpr std::array<std::string_view, 2> kNames{"softmax", "sigmoid"};
};
template <>
struct EnumNames<MatmulPrecision> {
  static constexpr std::array<std::string_view, 2> kNames{"exact", "fast"};
};

std::string class_name(nb::handle value) { return nb::cast<std::string>(value.type().attr("__name__")); }

std::optional<DType> dtype_named(std::string_view name) {
  for (int i = 0; i < kNumDTypes; ++i) {
    if (dtype_name(static_cast<DType>(i)) == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

std::optional<DType> dtype_of(nb::dlpack::dtype dtype) {
  const auto is = [&](nb::dlpack::dtype_code code, int bits) {
    return dtype.code == static_cast<std::uint8_t>(code) && dtype.bits == bits && dtype.lanes == 1;
  };
  if (is(nb::dlpack::dtype_code::Float, 32)) return DType::kF32;
  if (is(nb::dlpack::dtype_code::Float, 16)) return DType::kF16;
  if (is(nb::dlpack::dtype_code::Bfloat, 16)) return DType::kBF16;
  if (is(nb::dlpack::dtype_code::Int, 32)) return DType::kI32;
  return std::nullopt;
}

std::string name_of(nb::dlpack::dtype dtype) {
  // Of DLPack's codes, in their order; the last eleven have their bits in their names.
  constexpr std::array<std::string_view, 18> kKinds{"int",
                                                    "uint",
                                                    "float",
                                                    "opaque",
                                                    "bfloat",
                                                    "complex",
                                                    "bool",
                                                    "float8_e3m4",
                                                    "float8_e4m3",
                                                    "float8_e4m3b11fnuz",
                                                    "float8_e4m3fn",
                                                    "float8_e4m3fnuz",
                                                    "float8_e5m2",
                                                    "float8_e5m2fnuz",
                                                    "float8_e8m0fnu",
                                                    "float6_e2m3fn",
                                                    "float6_e3m2fn",
                                                    "float4_e2m1fn"};
  constexpr std::size_t kBool = 6;
  if (dtype.code >= kKinds.size()) return "DLPack dtype " + std::to_string(dtype.code);
  const std::string kind(kKinds[dtype.code]);
  return dtype.code < kBool ? kind + std::to_string(dtype.bits) : kind;
}

// Stands for the dtype of an array that DType has no name for; no operation takes it.
constexpr auto kForeign = static_cast<DType>(255);

// The value of a Python number, exactly or rounded to nearest: neither text nor a bool is one, and a float is no int.
bool is_bool(nb::handle value) { return class_name(value).starts_with("bool"); }  // NumPy's too

bool to_number(const nb::object& value, bool& to) { return nb::try_cast(value, to); }
bool to_number(const nb::object& value, int& to) {
  if (is_bool(value) || PyIndex_Check(value.ptr()) == 0) return false;
  const nb::object whole = nb::steal(PyNumber_Index(value.ptr()));
  if (!whole.is_valid()) {
    PyErr_Clear();
    return false;
  }
  return nb::try_cast(whole, to);
}
bool to_number(const nb::object& value, float& to) {
  if (is_bool(value) || class_name(value).starts_with("complex")) return false;
  const double wide = PyFloat_AsDouble(value.ptr());
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    return false;
  }
  const auto narrow = static_cast<float>(wide);
  if (std::isfinite(wide) && (!std::isfinite(narrow) || (wide != 0 && narrow == 0))) return false;
  to = narrow;
  return true;
}

// Fills an Args from keyword arguments and keeps the borrowed arrays.
class FromPython {
 public:
  FromPython(std::string_view operation, nb::dict arguments)
      : operation_(operation), arguments_(std::move(arguments)) {}

  void operator()(const char* name, ConstTensor& to) const {
    if (const nb::object value = take(name); !value.is_none()) to = view<nb::ro>(name, value);
  }
  void operator()(const char* name, Tensor& to) const {
    const nb::object value = take(name);
    if (value.is_none()) return;
    const ConstTensor read = view<>(name, value);
    to.data = const_cast<void*>(read.data);
    to.dtype = read.dtype;
    to.device = read.device;
    to.rank = read.rank;
    to.shape = read.shape;
    to.strides = read.strides;
  }
  void operator()(const char*, GateInputs& to) const { Fields<GateInputs>::each(*this, to); }
  void operator()(const char* name, int& to) const { number(name, to, "an int"); }
  void operator()(const char* name, float& to) const { number(name, to, "a float that float32 can hold"); }
  void operator()(const char* name, bool& to) const { number(name, to, "a bool"); }
  void operator()(const char* name, std::optional<float>& to) const {
    float value = 0;
    if (number(name, value, "a float that float32 can hold, or None")) to = value;
  }
  template <class Enum>
  requires std::is_enum_v<Enum>
  void operator()(const char* name, Enum& to) const {
    const nb::object value = take(name);
    if (value.is_none()) return;
    std::string expected = "one of";
    for (std::size_t i = 0; i < EnumNames<Enum>::kNames.size(); ++i) {
      if (nb::isinstance<nb::str>(value) && nb::cast<std::string>(value) == EnumNames<Enum>::kNames[i]) {
        to = static_cast<Enum>(i);
        return;
      }
      expected += " '" + std::string(EnumNames<Enum>::kNames[i]) + "'";
    }
    throw Error(operation_, name, expected, nb::cast<std::string>(nb::repr(value)));
  }

  // The device of the tensors: the first that is not the CPU, so that the operation's checks report mixed devices.
  Device device() const { return device_; }

  // Throws if an array has a dtype that DType has no name for. Which ones an argument takes, `validate` says: it calls
  // the operation's own checks.
  template <class Validate>
  void refuse_foreign(const Validate& validate) const {
    if (foreign_.empty()) return;
    std::string expected = "a dtype of thalweg's";
    const auto* refused = &foreign_.front();
    try {
      validate();
    } catch (const Error& error) {
      const auto found = std::find_if(foreign_.begin(), foreign_.end(),
                                      [&](const auto& pair) { return pair.first == error.argument(); });
      if (found == foreign_.end()) throw;
      refused = &*found;
      expected = error.expected();
    }
    throw Error(operation_, refused->first, expected, refused->second);
  }

  void refuse_unknown() const {
    if (nb::len(arguments_) == taken_) return;
    for (const auto [key, value] : arguments_) {
      const auto name = nb::cast<std::string>(key);
      if (std::find(names_.begin(), names_.end(), name) == names_.end()) {
        throw Error(operation_, name, "an argument that the operation has", "an unknown name");
      }
    }
  }

 private:
  nb::object take(const char* name) const {
    names_.emplace_back(name);
    if (!arguments_.contains(name)) return nb::none();
    ++taken_;
    return arguments_[name];
  }

  template <class Number>
  bool number(const char* name, Number& to, const char* expected) const {
    const nb::object value = take(name);
    if (value.is_none()) return false;
    if (!to_number(value, to)) throw Error(operation_, name, expected, nb::cast<std::string>(nb::repr(value)));
    return true;
  }

  // An array, or a pair of one and the name of the dtype that its bytes hold.
  template <class... ReadOnly>
  ConstTensor view(const char* name, const nb::object& value) const {
    nb::object source = value;
    std::optional<DType> packed;
    if (nb::isinstance<nb::tuple>(value) && nb::len(value) == 2) {
      source = value[0];
      const auto given = nb::cast<std::string>(value[1]);
      packed = dtype_named(given);
      if (!packed) throw Error(operation_, name, "a dtype such as 'Q4_K'", "'" + given + "'");
    }
    nb::ndarray<ReadOnly...> array;
    if (!nb::try_cast(source, array)) {
      PyErr_Clear();
      throw Error(operation_, name,
                  sizeof...(ReadOnly) > 0 ? "an array (DLPack or buffer protocol)"
                                          : "a writable array (DLPack or buffer protocol)",
                  class_name(source));
    }
    ConstTensor tensor;
    tensor.data = array.data();
    tensor.device = device_of(name, array.device_type(), array.device_id());
    tensor.rank = static_cast<int>(array.ndim());
    if (array.ndim() < 1 || array.ndim() > kMaxRank) {
      throw Error(operation_, name, "1 to " + std::to_string(kMaxRank) + " dimensions", std::to_string(array.ndim()));
    }
    for (std::size_t i = 0; i < array.ndim(); ++i) {
      tensor.shape[i] = static_cast<std::int64_t>(array.shape(i));
      tensor.strides[i] = array.stride(i);
    }
    if (packed) {
      as_packed(name, *packed, array.dtype(), tensor);
    } else if (const std::optional<DType> dtype = dtype_of(array.dtype())) {
      tensor.dtype = *dtype;
    } else {
      tensor.dtype = kForeign;
      foreign_.emplace_back(name, name_of(array.dtype()));
    }
    if (tensor.device.type != DeviceType::kCpu) device_ = tensor.device;
    if (array.size() > 0) borrowed_.emplace_back(std::move(source));
    return tensor;
  }

  // Converts a view of storage elements (bytes of blocks, uint16 of bf16) to one of weights.
  void as_packed(const char* name, DType dtype, nb::dlpack::dtype storage, ConstTensor& tensor) const {
    const DTypeInfo info = dtype_info(dtype);
    const int unit = storage.bits / 8;
    const auto last = static_cast<std::size_t>(tensor.rank - 1);
    if (unit < 1 || (tensor.shape[last] * unit) % info.block_bytes != 0 ||
        (tensor.shape[last] > 1 && tensor.strides[last] != 1)) {
      throw Error(operation_, name, "contiguous rows of whole blocks of " + std::to_string(info.block_bytes) + " bytes",
                  std::to_string(tensor.shape[last] * unit) + " bytes in a row");
    }
    const auto weights = [&](std::int64_t elements) { return elements * unit / info.block_bytes * info.block_size; };
    tensor.dtype = dtype;
    tensor.shape[last] = weights(tensor.shape[last]);
    tensor.strides[last] = 1;
    for (std::size_t i = 0; i < last; ++i) {
      if (tensor.shape[i] > 1 && (tensor.strides[i] * unit) % info.block_bytes != 0) {
        throw Error(operation_, name, "rows that begin with a block", "a stride within one");
      }
      tensor.strides[i] = weights(tensor.strides[i]);
    }
  }

  Device device_of(const char* name, int type, int index) const {
    switch (type) {
      case nb::device::cpu::value:
      case nb::device::cuda_host::value:
        return {DeviceType::kCpu, 0};
      case nb::device::cuda::value:
      case nb::device::cuda_managed::value:
        return {DeviceType::kCuda, index};
      case nb::device::metal::value:
        return {DeviceType::kMetal, index};
      default:
        throw Error(operation_, name, "an array on the CPU, CUDA or Metal", "DLPack device " + std::to_string(type));
    }
  }

  std::string_view operation_;
  nb::dict arguments_;
  // Visitors are called as const.
  mutable std::size_t taken_ = 0;
  mutable std::vector<std::string> names_;
  mutable std::vector<nb::object> borrowed_;
  mutable std::vector<std::pair<std::string, std::string>> foreign_;  // arguments and the names of their dtypes
  mutable Device device_;
};

// Memory for results where the arrays' own library has none that can be written.
nb::ndarray<nb::array_api> device_memory(const std::vector<std::size_t>& shape, const std::string& dtype, int device) {
  using Code = nb::dlpack::dtype_code;
  struct Named {
    std::string_view name;
    Code code;
    std::uint8_t bits;
  };
  constexpr std::array<Named, 5> kTypes{{{"float32", Code::Float, 32},
                                         {"float16", Code::Float, 16},
                                         {"bfloat16", Code::Bfloat, 16},
                                         {"int32", Code::Int, 32},
                                         {"uint8", Code::UInt, 8}}};
  const auto* type =
      std::find_if(kTypes.begin(), kTypes.end(), [&](const Named& named) { return named.name == dtype; });
  if (type == kTypes.end()) throw Error("device_memory", "dtype", "float32, float16, bfloat16, int32 or uint8", dtype);
  std::size_t bytes = type->bits / 8;
  for (const std::size_t size : shape) bytes *= size;
  auto* memory = new DeviceMemory({DeviceType::kCuda, device}, std::max<std::size_t>(bytes, 1));
  const nb::capsule owner(memory, [](void* owned) noexcept { delete static_cast<DeviceMemory*>(owned); });
  return {memory->data(),
          shape.size(),
          shape.data(),
          owner,
          nullptr,
          {static_cast<std::uint8_t>(type->code), type->bits, 1},
          nb::device::cuda::value,
          device};
}

// The names of an operation's fields, outputs and options in lists of their own.
struct FieldNames {
  std::vector<std::string> inputs, outputs, options;

  void operator()(const char* name, const ConstTensor&) { inputs.emplace_back(name); }
  void operator()(const char* name, const Tensor&) { outputs.emplace_back(name); }
  void operator()(const char*, const GateInputs& gates) {
    Fields<GateInputs>::each([this](const char* name, const ConstTensor&) { inputs.emplace_back(name); }, gates);
  }
  template <class Option>
  void operator()(const char* name, const Option&) {
    options.emplace_back(name);
  }
};

// The function that Python calls, for every operation.
struct Call {
  std::string_view operation;
  void (*run)(const nb::dict&, int threads, std::uintptr_t native, const nb::object& allocate);
  nb::list (*explain)(const nb::dict&, int threads);
  FieldNames (*fields)();
};

template <class Args>
std::pair<Args, Stream> parse(FromPython& from, int threads) {
  Args args;
  Fields<Args>::each(from, args);
  from.refuse_unknown();
  Stream stream{from.device(), threads, nullptr};
  from.refuse_foreign([&] { thalweg::workspace_size(args, stream); });
  return {args, stream};
}

template <class Args>
constexpr Call call_of() {
  return {
      Args::kName,
      [](const nb::dict& arguments, int threads, std::uintptr_t native, const nb::object& allocate) {
        FromPython from(Args::kName, arguments);
        auto [args, stream] = parse<Args>(from, threads);
        // NOLINTNEXTLINE(performance-no-int-to-ptr): that is how Python passes a cudaStream_t
        stream.native = reinterpret_cast<void*>(native);
        const std::size_t bytes = thalweg::workspace_size(args, stream);
        // Kept per thread: a decoder's calls do not allocate.
        thread_local HostWorkspace scratch;
        Workspace memory;
        nb::object lent;  // released before the call has run, because the library's memory is ordered by the stream
        if (allocate.is_none()) {
          memory = scratch.reserve(bytes);
        } else if (bytes > 0) {
          lent = allocate(bytes);
          memory = {nb::cast<nb::ndarray<>>(lent).data(), bytes};
        }
        const nb::gil_scoped_release release;
        thalweg::run(args, memory, stream);
      },
      [](const nb::dict& arguments, int threads) {
        FromPython from(Args::kName, arguments);
        const auto [args, stream] = parse<Args>(from, threads);
        const Explanation explanation = thalweg::explain(args, stream);
        nb::list kernels;
        for (std::size_t i = 0; i < explanation.kernels.size(); ++i) {
          const KernelVerdict& kernel = explanation.kernels[i];
          kernels.append(nb::make_tuple(kernel.kernel, kernel.supported, kernel.reason,
                                        static_cast<int>(i) == explanation.chosen));
        }
        return kernels;
      },
      [] {
        FieldNames names;
        const Args args;
        Fields<Args>::each([&](const char* name, const auto& field) { names(name, field); }, args);
        return names;
      },
  };
}

template <class... Args>
const Call& find_call(TypeList<Args...>, const std::string& operation) {
  static constexpr std::array kCalls{call_of<Args>()...};
  for (const Call& call : kCalls) {
    if (call.operation == operation) return call;
  }
  throw Error("ops", "operation", "the name of an operation", "'" + operation + "'");
}

const Call& find_call(const std::string& operation) { return find_call(Operations{}, operation); }

}  // namespace

void bind_operations(nb::module_& module) {
  module.def(
      "run",
      [](const std::string& operation, const nb::dict& arguments, int threads, std::uintptr_t native,
         const nb::object& allocate) { find_call(operation).run(arguments, threads, native, allocate); },
      nb::arg("operation"), nb::arg("arguments"), nb::arg("threads") = 0, nb::arg("native") = 0,
      nb::arg("allocate") = nb::none(),
      "Runs an operation. On a GPU `native` is the stream's handle, and allocate(bytes) gives an array of that many "
      "bytes for scratch memory.");
  module.def("device_memory", &device_memory, nb::arg("shape"), nb::arg("dtype"), nb::arg("device"),
             "Memory of a CUDA device, contiguous, with __dlpack__.");
  module.def(
      "synchronize",
      [](int device, std::uintptr_t native) {
        const nb::gil_scoped_release release;
        // NOLINTNEXTLINE(performance-no-int-to-ptr): that is how Python passes a cudaStream_t
        synchronize(Stream{{DeviceType::kCuda, device}, 0, reinterpret_cast<void*>(native)});
      },
      nb::arg("device"), nb::arg("native"), "Waits for a CUDA stream.");
  module.def(
      "explain",
      [](const std::string& operation, const nb::dict& arguments, int threads) {
        return find_call(operation).explain(arguments, threads);
      },
      nb::arg("operation"), nb::arg("arguments"), nb::arg("threads") = 0,
      "(kernel, supported, reason, chosen) of each kernel, in order of preference.");
  module.def(
      "fields",
      [](const std::string& operation) {
        const FieldNames names = find_call(operation).fields();
        return nb::make_tuple(names.inputs, names.outputs, names.options);
      },
      nb::arg("operation"), "The names of an operation's inputs, outputs and options.");
  module.def(
      "operations",
      [] {
        std::vector<std::string> names;
        for_each_operation([&]<class Args>() { names.emplace_back(Args::kName); });
        return names;
      },
      "The names of all operations.");
  module.def(
      "dtype_info",
      [](const std::string& dtype) {
        const std::optional<DType> found = dtype_named(dtype);
        if (!found) throw Error("dtype_info", "dtype", "a dtype such as 'Q4_K'", "'" + dtype + "'");
        const DTypeInfo info = dtype_info(*found);
        return nb::make_tuple(info.block_size, info.block_bytes, can_pack(*found));
      },
      nb::arg("dtype"), "(weights in a block, bytes of a block, whether quantize() packs it).");
  module.def(
      "backends",
      [] {
        nb::list list;
        for (const BackendInfo& backend : backends()) {
          list.append(nb::make_tuple(std::string(device_type_name(backend.type)), backend.available, backend.reason));
        }
        return list;
      },
      "(name, available, why not) of each backend.");
  module.def("select_kernel", &select_kernel, nb::arg("operation"), nb::arg("kernel"),
             "Makes an operation use one kernel, process-wide; '' undoes it.");
  module.def("select_instruction_set", &select_instruction_set, nb::arg("name"),
             "Makes the CPU use one of its instruction sets, process-wide; '' for the best.");
}

}  // namespace thalweg::python
