// The operations: generated from the lists of fields, so that a field that only the C++ struct or only
// its C mirror has does not compile.

#include "capi/operations.h"
#include "capi/convert.h"
#include "capi/errors.h"
#include "core/fields.h"

namespace thalweg::capi {

void FromC::operator()(const char*, GateInputs& to, const thalweg_gate_inputs& from) const {
  Fields<GateInputs>::each(*this, to, from);
}

namespace {

// The types of the mirror's members, as listed for Args and its bases.
template <class Args, class Mirror>
struct MirrorTypes {
  using type = decltype(detail::joined(std::declval<typename MirrorTypes<typename Fields<Args>::Base, Mirror>::type>(),
                                       std::declval<typename Fields<Args>::template Types<Mirror>>()));
};
template <class Mirror>
struct MirrorTypes<NoBase, Mirror> {
  using type = TypeList<>;
};

// After its size.
template <class Args, class Mirror>
constexpr bool mirrors() {
  using All = decltype(detail::joined(TypeList<std::size_t>{}, typename MirrorTypes<Args, Mirror>::type{}));
  return detail::Exactly<Mirror, thalweg_tensor, thalweg_gate_inputs, std::int32_t, std::int64_t, float, bool,
                         const float*>::by(All{});
}

template <class Args, class Mirror>
Mirror defaults_of() {
  Mirror mirror{};
  const Args args;
  Fields<Args>::each(DefaultsToC{}, args, mirror);
  return mirror;
}

template <class Args, class Mirror>
Args args_of(const Mirror* given) {
  const Mirror mirror = read_sized(given, defaults_of<Args, Mirror>(), Args::kName.data(), "args");
  Args args;
  Fields<Args>::each(FromC(Args::kName.data()), args, mirror);
  return args;
}

// "  cpu/vector: runs" and so on, a line for each kernel.
std::string explanation_text(const Explanation& explanation) {
  std::string text;
  for (std::size_t i = 0; i < explanation.kernels.size(); ++i) {
    const KernelVerdict& kernel = explanation.kernels[i];
    text += explanation.backend + "/" + kernel.kernel + ": ";
    if (static_cast<int>(i) == explanation.chosen) {
      text += "runs";
    } else {
      text += kernel.supported ? "could run" : "cannot run";
    }
    if (!kernel.reason.empty()) text += ", " + kernel.reason;
    text += "\n";
  }
  return text;
}

template <class... Args>
constexpr std::size_t count(TypeList<Args...>) {
  return sizeof...(Args);
}

#define THALWEG_COUNT(name) +1
static_assert((0 THALWEG_OPERATIONS(THALWEG_COUNT)) == count(Operations{}), "thalweg.h lacks an operation");

}  // namespace
}  // namespace thalweg::capi

#define THALWEG_C_OPERATION(name, Args)                                                                               \
  static_assert(thalweg::Args::kName == #name);                                                                       \
  static_assert(thalweg::capi::mirrors<thalweg::Args, thalweg_##name##_args>(), "thalweg_" #name "_args differs");    \
  template <>                                                                                                         \
  struct thalweg::capi::NameOf<thalweg_##name##_args> {                                                               \
    static constexpr const char* value = #name "_args";                                                               \
  };                                                                                                                  \
  void thalweg_##name##_args_init_sized(thalweg_##name##_args* args, size_t size) {                                   \
    thalweg::capi::init_sized(thalweg::capi::defaults_of<thalweg::Args, thalweg_##name##_args>(), args, size);        \
  }                                                                                                                   \
  thalweg_status thalweg_##name##_workspace_size(const thalweg_##name##_args* args, const thalweg_stream* stream,     \
                                                 size_t* bytes) {                                                     \
    return thalweg::capi::guarded([&] {                                                                               \
      thalweg::capi::require_pointer(bytes, #name, "bytes");                                                          \
      *bytes = workspace_size(thalweg::capi::args_of<thalweg::Args>(args), thalweg::capi::CallStream(stream, #name)); \
    });                                                                                                               \
  }                                                                                                                   \
  thalweg_status thalweg_##name##_explain(const thalweg_##name##_args* args, const thalweg_stream* stream,            \
                                          const char** text) {                                                        \
    return thalweg::capi::guarded([&] {                                                                               \
      thalweg::capi::require_pointer(text, #name, "text");                                                            \
      std::string& kept = thalweg::capi::thread_state().text;                                                         \
      kept = thalweg::capi::explanation_text(                                                                         \
          explain(thalweg::capi::args_of<thalweg::Args>(args), thalweg::capi::CallStream(stream, #name)));            \
      *text = kept.c_str();                                                                                           \
    });                                                                                                               \
  }                                                                                                                   \
  thalweg_status thalweg_##name(const thalweg_##name##_args* args, void* workspace, size_t workspace_bytes,           \
                                const thalweg_stream* stream) {                                                       \
    return thalweg::capi::guarded([&] {                                                                               \
      run(thalweg::capi::args_of<thalweg::Args>(args), thalweg::Workspace{workspace, workspace_bytes},                \
          thalweg::capi::CallStream(stream, #name));                                                                  \
    });                                                                                                               \
  }

THALWEG_C_OPERATIONS(THALWEG_C_OPERATION)
