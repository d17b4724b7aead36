// What the options say of cuBLASLt and cuDNN.
#pragma once
#include "device/blas.h"
#include "device/dnn.h"
#include "plugin/options/options.h"

namespace encore::plugin {

device::BlasSettings blas_settings(const Options& options);
device::DnnSettings dnn_settings(const Options& options);  // without the functions

}  // namespace encore::plugin
