#pragma once

#include <cstddef>

#include "thalweg/api.h"
#include "thalweg/device.h"

THALWEG_API_BEGIN
namespace thalweg {

// Every operation is described by one struct, <Name>Args, that holds its tensors and options. Three functions take it;
// they are instantiated for every Args struct of the public headers. They throw thalweg::Error, before anything is
// written, if the arguments break the operation's contract. Any thread may call them at any time (see Stream).

// Runs the operation; the device of its tensors decides the backend and must be the stream's.
template <class Args>
void run(const Args& args, Workspace workspace, const Stream& stream);

// Bytes of scratch memory that run() needs. Looks at shapes, strides and dtypes only: data pointers may be null.
template <class Args>
std::size_t workspace_size(const Args& args, const Stream& stream);

// Which kernels could run, in order of preference, and which one will. Data pointers may be null.
template <class Args>
Explanation explain(const Args& args, const Stream& stream);

}  // namespace thalweg
THALWEG_API_END
