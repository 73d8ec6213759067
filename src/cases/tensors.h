#pragma once

#include <type_traits>

#include "core/fields.h"

namespace thalweg::cases {

// Calls fn(tensor) for each tensor of an operation's arguments, absent ones included.
template <class Args, class Fn>
void visit_tensors(Args& args, const Fn& fn) {
  const auto visit = [&](const char*, auto& field) {
    using Field = std::remove_reference_t<decltype(field)>;
    if constexpr (std::is_same_v<Field, Tensor> || std::is_same_v<Field, ConstTensor>) {
      fn(field);
    } else if constexpr (std::is_same_v<Field, GateInputs>) {
      visit_tensors(field, fn);
    }
  };
  Fields<Args>::each(visit, args);
}

}  // namespace thalweg::cases
