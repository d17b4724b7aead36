// Convolutions, channels last, of halves and as TF32 of floats: products by tiles (ops/matmul/tile_gemm.h) whose left
// factor is never written. A row is what a window has of x, from which the tiles take it. With few positions they are
// done before a library's kernel, and they end with any activation.
#pragma once
#include "ops/matmul/tile_gemm.h"
#include "ops/nn/epilogue.h"

namespace encore::ops {

// Of few channels of floats, as pictures have, those of a tap are filled up with zeros to as many as are copied at
// once.
inline constexpr int kFilledChannels = 4;
bool fills_channels(Type type, bool tf32, Layout layout, int64_t groups, int64_t in_channels);
// Of weights [output, channel, taps], into [output, taps, kFilledChannels].
size_t filled_bytes(const Tensor& w);
void fill_channels(StreamRef stream, const Tensor& w, void* into);

// Whether the convolution can be done so: of one group, up to two dimensions and windows of some positions, in and out
// multiples of eight channels at addresses of 16 bytes; or few channels in, and weights that are filled up.
bool suits_tiles(const ConvProblem& problem, const ConvData& data, const void* residual);
// The way to take, if it pays; suits_tiles() holds.
TileGemmWay tile_convolution_way(const ConvProblem& problem, const Activation& activation, const TileRoom& room);

// y = activation(conv(x, w) + bias + residual), rounded as tile_gemm() does.
void convolve_tiles(StreamRef stream, const ConvProblem& problem, const ConvData& data, const Epilogue& rest,
                    TileGemmWay way);

}  // namespace encore::ops
