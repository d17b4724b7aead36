// cudnn-frontend, whose headers take longer to compile than all that uses them: include it where graphs are built.
#pragma once
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include <stdexcept>

namespace encore::device {

namespace fe = cudnn_frontend;

inline void check(const fe::error_t& result) {
  if (result.is_bad()) throw std::runtime_error(result.err_msg);
}

}  // namespace encore::device
