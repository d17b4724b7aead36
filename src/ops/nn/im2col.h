// The windows of a convolution as columns or rows of a matrix, and columns back as a picture.
#pragma once
#include "ops/nn/convolve.h"

namespace encore::ops {

// columns[image, channel, tap, position - first] = x at that tap of the window at that position.
void im2col(StreamRef stream, const ConvProblem& problem, const void* x, const ColumnRange& range, void* columns);

// Rows of the windows at the positions of all images from `first` on: [group, position, tap, channel], or where
// channels come first [group, position, channel, tap].
void im2row(StreamRef stream, const ConvProblem& problem, const void* x, int64_t first, int64_t count, void* rows);

// The same for windows that share nothing, which is a copy: all images' positions one after the other, and of each
// [channel, tap] or, channels last, [tap, channel].
void copy_windows(StreamRef stream, const ConvProblem& problem, int64_t images, const void* x, void* to);

// y[image, channel, place] = bias + the sum of all columns whose tap falls on that place. Columns are [image, channel,
// tap, position], or for channels last [group, image, position, tap, channel].
void col2im(StreamRef stream, const ConvProblem& problem, int64_t images, const void* columns, const void* bias,
            void* y);

}  // namespace encore::ops
