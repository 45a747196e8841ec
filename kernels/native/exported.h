// Exports a function to Python, like tvm_ffi's own macro. That macro inlines the conversion of every argument, with its
// error text, into each function, which took half of the time to compile the kernels.
#pragma once

#include <tvm/ffi/function.h>

#include <utility>

namespace attnfuzz {

template <typename T>
[[gnu::noinline]] T argument(const tvm::ffi::AnyView* arguments, size_t index) {
  return arguments[index].cast<T>();
}

[[gnu::noinline]] inline void require_count(int32_t given, size_t count) {
  if (static_cast<size_t>(given) != count) TVM_FFI_THROW(TypeError) << count << " arguments needed, not " << given;
}

template <typename Result, typename... Parameters, size_t... Index>
void call(Result (*function)(Parameters...), const tvm::ffi::AnyView* arguments, [[maybe_unused]] tvm::ffi::Any* result,
          std::index_sequence<Index...>) {
  if constexpr (std::is_void_v<Result>) {
    function(argument<Parameters>(arguments, Index)...);
  } else {
    *result = function(argument<Parameters>(arguments, Index)...);
  }
}

template <typename Result, typename... Parameters>
int exported(Result (*function)(Parameters...), const TVMFFIAny* arguments, int32_t count, TVMFFIAny* result) {
  TVM_FFI_SAFE_CALL_BEGIN();
  require_count(count, sizeof...(Parameters));
  call(function, reinterpret_cast<const tvm::ffi::AnyView*>(arguments), reinterpret_cast<tvm::ffi::Any*>(result),
       std::index_sequence_for<Parameters...>{});
  TVM_FFI_SAFE_CALL_END();
}

}  // namespace attnfuzz

#define EXPORT(name, function)                                                                                   \
  extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_##name(void*, const TVMFFIAny* arguments, int32_t count,           \
                                                     TVMFFIAny* result) {                                        \
    return attnfuzz::exported(function, arguments, count, result);                                               \
  }
