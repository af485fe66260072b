/* A CUDA driver of version 12.8 with one invented card of compute capability 7.5; nothing can run on it. */
#include <string.h>
#define SAY(name) int name() { return 0; }
typedef unsigned long long u64;
int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { *version = 12080; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return index ? 101 : 0; }
int cuDeviceGetName(char *name, int size, int device) { strncpy(name, "Invented RTX 2080 Ti", size); return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = 11ull << 30; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  switch (attribute) {
  case 75: *value = 7; break;      /* major */
  case 76: *value = 5; break;      /* minor */
  case 97: *value = 65536; break;  /* shared memory of a block that asks for it, in bytes */
  case 10: *value = 32; break;     /* warp size */
  default: *value = 1;
  }
  return 0;
}
int cuGetErrorString(int code, const char **text) { *text = "invented"; return 0; }
int cuCtxGetCurrent(void **context) { *context = (void *)1; return 0; }
SAY(cuCtxSetCurrent) SAY(cuDevicePrimaryCtxRetain) SAY(cuModuleLoadData) SAY(cuModuleGetFunction)
SAY(cuFuncGetAttribute) SAY(cuFuncSetAttribute) SAY(cuFuncSetCacheConfig) SAY(cuCtxGetLimit) SAY(cuCtxSetLimit)
SAY(cuPointerGetAttribute) SAY(cuOccupancyMaxActiveClusters) SAY(cuTensorMapEncodeTiled)
SAY(cuTensorMapEncodeIm2col) SAY(cuLaunchKernelEx)
