// Products by warpgroups on CUDA. What calls them is compiled for sm_90a, too, and traps elsewhere.
#pragma once
#include "device/warpgroup.h"

namespace encore::device {
namespace cuda {

// Barriers that count arrivals and bytes, by their address in shared memory.
DEVICE_FN uint32_t shared_address(const void* at) { return uint32_t(__cvta_generic_to_shared(at)); }
DEVICE_FN void begin_barrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// The copy engine sees them.
DEVICE_FN void show_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;\n fence.proxy.async.shared::cta;" ::: "memory");
}
DEVICE_FN void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
DEVICE_FN void arrive_and_expect(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Until the turn of this parity is over.
DEVICE_FN void wait_for(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n .reg .pred over;\n"
      "again:\n mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n @over bra done;\n bra again;\n"
      "done:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

DEVICE_FN void copy_box(uint32_t to, const TensorMap* map, int column, int row, uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          to),
      "l"(map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
#endif
}

// A tile in shared memory: rows of 128 bytes, whose granules are swizzled with the row within eight. No factor has two
// boxes side by side, so how far apart these were says nothing.
DEVICE_FN uint64_t matrix_descriptor(uint32_t at) {
  constexpr int kBoxesApart = 16, kEightRows = 1024;  // bytes
  return uint64_t((at & 0x3ffff) >> 4) | uint64_t(kBoxesApart >> 4) << 16 | uint64_t(kEightRows >> 4) << 32 |
         uint64_t(1) << 62;
}

DEVICE_FN void begin_warpgroup_mma() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE_FN void end_group_of_mma() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// All groups but the latest kMany are done.
template <int kMany>
DEVICE_FN void wait_for_mma_before() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kMany) : "memory");
}

// sums += a * b, of 64 rows, 64 columns and a depth of 16. The compiler must not touch the sums until they are waited
// for.
template <class T, bool kTransposed>
DEVICE_FN void warpgroup_mma(float (&d)[32], uint64_t a, uint64_t b) {
#define WARPGROUP_MMA(TYPE)                                                                                         \
  asm volatile(                                                                                                     \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE                                                   \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, " \
      "%23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, 1, 1, 1, 0, %34;"                                    \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), \
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),      \
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),     \
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])                   \
      : "l"(a), "l"(b), "n"(kTransposed ? 0 : 1))
  if constexpr (std::is_same_v<T, Half>)
    WARPGROUP_MMA("f16");
  else
    WARPGROUP_MMA("bf16");
#undef WARPGROUP_MMA
}

template <class Tile>
struct Stages {
  template <class Shared>
  DEVICE_FN Stages(Block<Shared>& block, Shared& s)
      : data((shared_address(block.template dynamic<unsigned char>(s)) + Tile::kAlignment - 1) &
             ~uint32_t(Tile::kAlignment - 1)),
        full(shared_address(s.arrivals.full)),
        empty(shared_address(s.arrivals.empty)) {}

  DEVICE_FN void load_a(const TileFactors& f, int step, int stage) const {
    copy_box(data + stage * Tile::kStageBytes, f.a, f.first + step * Tile::kDepth, f.row, full + 8 * stage);
  }
  // Comes first: it says how many bytes both are.
  DEVICE_FN void load_b(const TileFactors& f, int step, int stage) const {
    arrive_and_expect(full + 8 * stage, Tile::kStageBytes);
    const uint32_t to = data + stage * Tile::kStageBytes + Tile::kBytesOfA;
    const int depth = f.first + step * Tile::kDepth;
    if constexpr (Tile::kTransposed) {
      copy_box(to, f.b, depth, f.column, full + 8 * stage);
    } else {
      UNROLL for (int i = 0; i < Tile::kGroups; ++i) copy_box(to + i * Tile::kRowsOfBoxOfB * Tile::kRowBytes, f.b,
                                                              f.column + i * kBoxColumns, depth, full + 8 * stage);
    }
  }
  DEVICE_FN void multiply(float (&sums)[Tile::kSums], int stage, int group) const {
    const uint32_t a = data + stage * Tile::kStageBytes;
    const uint32_t b = a + Tile::kBytesOfA + group * Tile::kGroupColumns * Tile::kRowBytes;
    constexpr int kSteps = Tile::kDepth / 16, kAlongA = Tile::kRowBytes / kSteps;
    constexpr int kAlongB = Tile::kTransposed ? kAlongA : 16 * Tile::kRowBytes;
    UNROLL for (int i = 0; i < kSteps; ++i) warpgroup_mma<typename Tile::T, Tile::kTransposed>(
        sums, matrix_descriptor(a + i * kAlongA), matrix_descriptor(b + i * kAlongB));
  }

  uint32_t data, full, empty;
};

}  // namespace cuda

template <class Tile, class Shared, class F>
__device__ __forceinline__ void begin(Block<Shared>& block, const TileFactors& f, F also) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  block.threads([&](int t, Shared& s) {
    if (t == Tile::kMultiplying) {
      const cuda::Stages<Tile> stages(block, s);
      const int first = f.steps < Tile::kStages ? f.steps : Tile::kStages;
      UNROLL for (int i = 0; i < Tile::kStages; ++i) {
        cuda::begin_barrier(stages.full + 8 * i, 1);
        cuda::begin_barrier(stages.empty + 8 * i, Tile::kGroups);
      }
      cuda::show_barriers();
      if (f.constant_b) {
        for (int i = 0; i < first; ++i) stages.load_b(f, i, i);
      }
      block.wait();
      for (int i = 0; i < first; ++i) {
        if (!f.constant_b) stages.load_b(f, i, i);
        stages.load_a(f, i, i);
      }
    } else {
      block.wait();
    }
    also(t, s);
  });
#else
  __trap();
#endif
}

template <class Tile, class Shared>
__device__ __forceinline__ void multiply(Block<Shared>& block, const TileFactors& f,
                                         PerThread<typename Tile::Sums, Tile::kThreads>& sums) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  block.threads([&](int t, Shared& s) {
    const cuda::Stages<Tile> stages(block, s);
    auto& own = sums[t].at;
    UNROLL for (float& sum : own) sum = 0;
    int stage = 0;
    uint32_t parity = 0;
    const auto next = [&] {
      if (++stage == Tile::kStages) stage = 0, parity ^= 1;
    };
    if (t >= Tile::kMultiplying) {
      if (t == Tile::kMultiplying) {
        NO_UNROLL for (int step = Tile::kStages; step < f.steps; ++step, next()) {
          cuda::wait_for(stages.empty + 8 * stage, parity);
          stages.load_b(f, step, stage);
          stages.load_a(f, step, stage);
        }
      }
    } else {
      int before = 0;
      NO_UNROLL for (int step = 0; step < f.steps; ++step, next()) {
        cuda::wait_for(stages.full + 8 * stage, parity);
        cuda::begin_warpgroup_mma();
        stages.multiply(own, stage, t / 128);
        cuda::end_group_of_mma();
        cuda::wait_for_mma_before<1>();
        if (step > 0 && t % 128 == 0) cuda::arrive(stages.empty + 8 * before);
        before = stage;
      }
      cuda::wait_for_mma_before<0>();
      UNROLL for (float& sum : own) asm volatile("" : "+f"(sum)::"memory");
    }
  });
#else
  __trap();
#endif
}

}  // namespace encore::device
