// Blocks that work together: those of a cluster, which are neighbours, run at the same time, and each may read what the
// others have in shared memory.
//   cluster_kernel<Shared>(stream, {clusters, blocks in each, threads}, body)
// calls body(b, shared) for every block and, once this is done for all of a cluster, body.join(b, shared, cluster).
// Between the two Shared keeps what it holds, of which from then on nobody may write what another block reads;
// registers keep nothing. A body with `kDynamicBytes` has so much dynamic shared memory, which no other block sees, or
// as much as the launch says, if that is less.
// One with `kSpreads` asks for a third of a multiprocessor's instead, where launches begin early: their blocks gather
// on the few multiprocessors which are free first, and crowd there while the others are idle. So no more than two do.
#pragma once
#include "device/launch.h"

namespace encore::device {

struct Clusters {
  int64_t clusters;           // zero launches nothing
  int blocks;                 // in each: a power of two, at most most_in_cluster()
  int threads;                // of a block, as in Blocks
  int64_t dynamic_bytes = 0;  // at most the body's kDynamicBytes, which zero stands for
};
inline constexpr int kMostInCluster = 8;  // larger ones not all GPUs have; others have few, none beside other kernels

template <class Body>
constexpr int64_t dynamic_bytes() {
  if constexpr (requires { Body::kDynamicBytes; })
    return Body::kDynamicBytes;
  else
    return 0;
}

template <class Body>
constexpr bool spreads() {
  if constexpr (requires { Body::kSpreads; })
    return Body::kSpreads;
  else
    return false;
}

}  // namespace encore::device

#ifdef __CUDACC__
#include "device/cuda/cluster.h"
#else
#include "device/virtual/cluster.h"
#endif
