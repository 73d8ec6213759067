#include "cuda/experts/linear_cublas.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <map>
#include <mutex>
#include <tuple>
#include <type_traits>
#include <utility>

#include "core/arena.h"
#include "cuda/experts/expert_lists.h"
#include "cuda/launch.h"

namespace thalweg::cu {
namespace {

// ---- the library

struct Functions {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulDescCreate) create_operation;
  decltype(&cublasLtMatmulDescSetAttribute) set_operation;
  decltype(&cublasLtMatrixLayoutCreate) create_layout;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference;
  decltype(&cublasLtMatmulAlgoGetHeuristic) get_heuristic;
  decltype(&cublasLtGetStatusString) status_string;
  bool found = false;
};

std::string library_name() { return "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR); }

const Functions& functions() {
  static const Functions all = [] {
    Functions f{};
    void* library = dlopen(library_name().c_str(), RTLD_NOW | RTLD_LOCAL);  // stays loaded until the process ends
    if (library == nullptr) return f;
    f.found = true;
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      f.found &= function != nullptr;
    };
    find(f.create, "cublasLtCreate");
    find(f.matmul, "cublasLtMatmul");
    find(f.create_operation, "cublasLtMatmulDescCreate");
    find(f.set_operation, "cublasLtMatmulDescSetAttribute");
    find(f.create_layout, "cublasLtMatrixLayoutCreate");
    find(f.create_preference, "cublasLtMatmulPreferenceCreate");
    find(f.set_preference, "cublasLtMatmulPreferenceSetAttribute");
    find(f.destroy_preference, "cublasLtMatmulPreferenceDestroy");
    find(f.get_heuristic, "cublasLtMatmulAlgoGetHeuristic");
    find(f.status_string, "cublasLtGetStatusString");
    return f;
  }();
  return all;
}

void check(cublasStatus_t status) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(LinearArgs::kName, "weight", "a product that cuBLASLt can do", functions().status_string(status));
}

// ---- products, each planned once

// The recommended size for Hopper.
constexpr std::size_t kScratchBytes = 32 << 20;
constexpr std::uintptr_t kScratchAlignment = 256;
constexpr int kAlignment = 16;  // of rows

cudaDataType_t data_type(DType dtype) { return dtype == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF; }

// y[T,N] = x[T,K] weight[N,K]^T; to cuBLASLt, which counts along columns first, y^T = weight x^T.
struct Product {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t weight = nullptr, x = nullptr, y = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
};

struct Shape {
  int device;
  std::int64_t tokens, n, k, weight_stride, x_stride, y_stride;
  DType y;

  auto key() const { return std::tuple(device, tokens, n, k, weight_stride, x_stride, y_stride, y); }
  bool operator<(const Shape& other) const { return key() < other.key(); }
};

Product plan(cublasLtHandle_t handle, const Shape& shape) {
  const Functions& f = functions();
  Product p;
  const auto extent = [](std::int64_t size) { return static_cast<std::uint64_t>(size); };
  check(f.create_operation(&p.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const cublasOperation_t transposed = CUBLAS_OP_T;
  check(f.set_operation(p.operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed));
  check(f.create_layout(&p.weight, CUDA_R_16BF, extent(shape.k), extent(shape.n), shape.weight_stride));
  check(f.create_layout(&p.x, CUDA_R_16BF, extent(shape.k), extent(shape.tokens), shape.x_stride));
  check(f.create_layout(&p.y, data_type(shape.y), extent(shape.n), extent(shape.tokens), shape.y_stride));

  cublasLtMatmulPreference_t preference = nullptr;
  check(f.create_preference(&preference));
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    check(f.set_preference(preference, attribute, &value, sizeof value));
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(kScratchBytes));
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    prefer(attribute, static_cast<std::uint32_t>(kAlignment));
  }
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  const cublasStatus_t status =
      f.get_heuristic(handle, p.operation, p.weight, p.x, p.y, p.y, preference, 1, &best, &found);
  f.destroy_preference(preference);
  check(status);
  if (found == 0) check(CUBLAS_STATUS_NOT_SUPPORTED);
  p.algorithm = best.algo;
  return p;
}

// Plans and handles live as long as the process: planning takes longer than most products.
class Products {
 public:
  std::pair<cublasLtHandle_t, Product> find(const Shape& shape) {
    const std::scoped_lock lock(mutex_);
    // Allocations made here must not be recorded in a graph that the caller captures.
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cu::check(cudaThreadExchangeStreamCaptureMode(&mode), LinearArgs::kName);
    const struct Restore {
      cudaStreamCaptureMode& mode;
      ~Restore() { cudaThreadExchangeStreamCaptureMode(&mode); }
    } restore{mode};
    cublasLtHandle_t& handle = handles_[shape.device];
    if (handle == nullptr) check(functions().create(&handle));
    auto known = products_.find(shape);
    if (known == products_.end()) known = products_.emplace(shape, plan(handle, shape)).first;
    return {handle, known->second};
  }

 private:
  std::mutex mutex_;
  std::map<int, cublasLtHandle_t> handles_;
  std::map<Shape, Product> products_;
};

// The stride of rows; that of a single row is arbitrary.
template <class AnyTensor>
std::int64_t row_stride(const AnyTensor& matrix) {
  return matrix.dim(0) > 1 ? matrix.stride(0) : matrix.dim(1);
}

template <class AnyTensor>
bool fits(const AnyTensor& matrix) {
  return address_alignment(matrix) % kAlignment == 0 && row_stride(matrix) >= matrix.dim(1) &&
         bytes_of(matrix.dtype, row_stride(matrix)) % kAlignment == 0;
}

bool converts(const LinearArgs& args) { return args.x.dtype != DType::kBF16; }

struct Buffers {
  std::uint16_t* x;  // [T,K] bf16, if x is something else
  std::byte* scratch;
  std::size_t bytes;

  Buffers(const LinearArgs& args, Arena arena)
      : x(arena.take<std::uint16_t>(converts(args) ? args.x.size() : 0)),
        scratch(arena.take<std::byte>(kScratchBytes + kScratchAlignment)),
        bytes(arena.used()) {}

  void* aligned_scratch() const {
    const auto address = reinterpret_cast<std::uintptr_t>(scratch);
    return scratch + (kScratchAlignment - address % kScratchAlignment) % kScratchAlignment;
  }
};

}  // namespace

std::string linear_cublas_supports(const LinearArgs& args, const Stream&) {
  if (args.weight.dtype != DType::kBF16) return "takes BF16 weights";
  if (args.y.dtype == DType::kF16) return "takes F32 or BF16 results";
  if (args.bias.defined()) return "takes no bias";
  if (args.weight.dim(1) % 8 != 0) return "takes a K that is a multiple of 8";
  if (!fits(args.weight) || !fits(args.y) || (!converts(args) && !fits(args.x))) {
    return "takes rows that begin at multiples of 16 bytes and do not overlap";
  }
  if (!functions().found) return "needs " + library_name();
  return {};
}

std::size_t linear_cublas_workspace(const LinearArgs& args) { return Buffers(args, Arena()).bytes; }

void run_linear_cublas(const LinearArgs& args, Workspace workspace, const Stream& stream) {
  if (args.y.size() == 0) return;
  const CurrentDevice current(stream, LinearArgs::kName);
  static Products products;
  const Buffers buffers(args, Arena(workspace));
  const void* x = args.x.data;
  std::int64_t x_stride = row_stride(args.x);
  if (converts(args)) {
    convert_rows(args.x, buffers.x, stream, LinearArgs::kName);
    x = buffers.x;
    x_stride = args.x.dim(1);
  }
  const auto [handle, product] =
      products.find({stream.device.index, args.x.dim(0), args.weight.dim(0), args.weight.dim(1),
                     row_stride(args.weight), x_stride, row_stride(args.y), args.y.dtype});
  const float one = 1.0F;
  const float zero = 0.0F;
  check(functions().matmul(handle, product.operation, &one, args.weight.data, product.weight, x, product.x, &zero,
                           args.y.data, product.y, args.y.data, product.y, &product.algorithm,
                           buffers.aligned_scratch(), kScratchBytes, native(stream)));
}

}  // namespace thalweg::cu
