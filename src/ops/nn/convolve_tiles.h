// Convolutions, channels last, of halves and as TF32 of floats: products by tiles (ops/matmul/tile_gemm.h) whose left
// factor is never written. A row is what a window has of x, from which the tiles take it. With few positions they are
// done before a library's kernel, and they end with any activation.
#pragma once
#include "ops/matmul/tile_gemm.h"
#include "ops/nn/epilogue.h"

namespace encore::ops {

// Few channels, as pictures have, are filled up with zeros to as many as are copied at once: those of x and, of each
// tap, of w. Behind w's last tap there may be zeros, too.
inline constexpr int kFilledChannels = 4;
// Of a convolution with its channels last: those of x are first, and few.
inline constexpr const char* kTakesPlanes = "takes_planes";
inline int64_t filled_depth(int64_t taps) { return (taps + 1) / 2 * 2 * kFilledChannels; }
// Of weights [output, channel, taps], into [output, filled_depth(taps)].
size_t filled_bytes(const Tensor& w);
void fill_channels(StreamRef stream, const Tensor& w, void* into);

// Whether the convolution can be done so: of one group, up to two dimensions and windows of some positions, out and in
// multiples of eight channels at addresses of 16 bytes. Or few channels in, x and w being filled up. x may be a part.
bool suits_tiles(const ConvProblem& problem, const ConvData& data, const void* residual);
// The way to take, if it pays; suits_tiles() holds.
TileGemmWay tile_convolution_way(const ConvProblem& problem, const Activation& activation, const TileRoom& room);

// y = activation(conv(x, w) + bias + residual), rounded as tile_gemm() does.
void convolve_tiles(StreamRef stream, const ConvProblem& problem, const ConvData& data, const Epilogue& rest,
                    TileGemmWay way);

}  // namespace encore::ops
