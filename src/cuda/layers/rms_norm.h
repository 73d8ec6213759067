#pragma once

#include "cuda/common/peer_exchange.h"
#include "thalweg/device.h"
#include "thalweg/nn.h"

namespace thalweg::cu {

// rms_norm with the sum of args.delta over the ranks as delta. False if it takes other arguments: a delta of BF16,
// at most PeerInboxes::kBlocks rows of 4 * PeerInboxes::kItems elements, aligned to fours.
bool enqueue_summed_norm(const RmsNormArgs& args, const PeerInboxes& peers, const Stream& stream);

}  // namespace thalweg::cu
