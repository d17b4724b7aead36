#include "ops/shape/interleave.h"

#include "device/divide_small.h"
#include "device/launch.h"
#include "device/transform.h"
#include "ops/dispatch.h"

namespace encore::ops {
namespace {

using device::Block;
using device::NoShared;
using device::Pack;

// A thread has neighbours of each plane, up to 16 bytes, and asks for all of them at once. Blocks are small: one
// picture is little work, which all multiprocessors share. Of kMade planes those that there are not are zeros.
template <class T, int kPlanes, int kMade, int kPack>
struct InterleavePlanes {
  static constexpr int kMaxThreads = 64;
  const T* in;
  T* out;
  int count;                      // of packs
  device::SmallDivider by_packs;  // of a plane
  int64_t image_stride, plane_stride;
  DEVICE_FN void operator()(Block<NoShared>& b, const NoShared&) const {
    b.threads([&](int t, NoShared&) {
      const int i = int(b.index()) * kMaxThreads + t;
      if (i >= count) return;
      int pack;
      const int image = by_packs(i, pack);
      const T* const from = in + image * image_stride + int64_t(pack) * kPack;
      Pack<T, kPack> planes[kPlanes], made[kMade];
      UNROLL for (int p = 0; p < kPlanes; ++p) planes[p] = device::load_aligned<kPack>(from + p * plane_stride);
      UNROLL for (int j = 0; j < kMade * kPack; ++j) made[j / kPack].at[j % kPack] =
          j % kMade < kPlanes ? planes[j % kMade].at[j / kMade] : T(0);
      T* const to = out + int64_t(i) * kMade * kPack;
      UNROLL for (int p = 0; p < kMade; ++p) device::store_aligned(to + p * kPack, made[p]);
    });
  }
};

template <class T, int kPlanes, int kMade>
void launch(device::StreamRef stream, const Interleaving& pictures, const void* in, void* out) {
  const auto& [images, planes, size, image_stride, plane_stride] = pictures;
  const auto in_packs = [&]<int kPack>() {
    using Kernel = InterleavePlanes<T, kPlanes, kMade, kPack>;
    const int64_t packs = size / kPack, count = images * packs;
    device::block_kernel<NoShared>(stream, {(count - 1) / Kernel::kMaxThreads + 1, Kernel::kMaxThreads},
                                   Kernel{static_cast<const T*>(in), static_cast<T*>(out), int(count),
                                          device::SmallDivider(int(packs)), image_stride, plane_stride});
  };
  constexpr int kPack = device::pack_size<T>();
  if (size % kPack == 0 && image_stride % kPack == 0 && plane_stride % kPack == 0 &&
      device::is_pack_aligned<kPack>(static_cast<const T*>(in)) &&
      device::is_pack_aligned<kPack>(static_cast<const T*>(out)))
    in_packs.template operator()<kPack>();
  else
    in_packs.template operator()<1>();
}

bool is_little(const Interleaving& pictures) { return pictures.images * pictures.size < int64_t(1) << 30; }

}  // namespace

bool interleave(device::StreamRef stream, const Interleaving& pictures, const void* in, void* out, size_t bytes) {
  if (pictures.planes < 2 || pictures.planes > 4 || bytes > 8 || !is_little(pictures)) return false;
  dispatch_size(bytes, [&]<class T>() {
    if constexpr (sizeof(T) <= 8) {
      switch (pictures.planes) {
        case 2: return launch<T, 2, 2>(stream, pictures, in, out);
        case 3: return launch<T, 3, 3>(stream, pictures, in, out);
        default: return launch<T, 4, 4>(stream, pictures, in, out);
      }
    }
  });
  return true;
}

void interleave_by_four(device::StreamRef stream, const Interleaving& pictures, const void* in, void* out,
                        size_t bytes) {
  if (pictures.planes < 2 || pictures.planes > 4 || (bytes != 2 && bytes != 4) || !is_little(pictures))
    fail(Code::internal, pictures.planes, " planes of ", pictures.size, " by four");
  const auto as = [&]<class T>() {
    switch (pictures.planes) {
      case 2: return launch<T, 2, 4>(stream, pictures, in, out);
      case 3: return launch<T, 3, 4>(stream, pictures, in, out);
      default: return launch<T, 4, 4>(stream, pictures, in, out);
    }
  };
  bytes == 2 ? as.template operator()<uint16_t>() : as.template operator()<uint32_t>();
}

}  // namespace encore::ops
