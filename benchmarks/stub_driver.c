/* In the place of libcuda: accepts what Triton's launcher calls, computes nothing, and counts launches. */

#include <stddef.h>

enum { REGISTERS = 65536, THREADS = 1024, SHARED = 227 << 10 };

static unsigned long count;

unsigned long launches(void) { return count; }

#define ACCEPTED(name) int name(void) { return 0; }

ACCEPTED(cuInit)
ACCEPTED(cuCtxSetCurrent)
ACCEPTED(cuCtxSetLimit)
ACCEPTED(cuFuncSetAttribute)
ACCEPTED(cuFuncSetCacheConfig)
ACCEPTED(cuModuleUnload)
ACCEPTED(cuTensorMapEncodeTiled)
ACCEPTED(cuTensorMapEncodeIm2col)

static int set(int *found, int value) { *found = value; return 0; }

static int point(void **found) { static int anything; *found = &anything; return 0; }

int cuLaunchKernelEx(void) { count++; return 0; }
int cuGetErrorString(int error, const char **text) { (void)error; *text = "none"; return 0; }
int cuDriverGetVersion(int *found) { return set(found, 13000); }
int cuDeviceGet(int *found, int number) { return set(found, number); }
int cuDeviceGetCount(int *found) { return set(found, 1); }
int cuCtxGetDevice(int *found) { return set(found, 0); }
int cuStreamIsCapturing(void *stream, int *found) { (void)stream; return set(found, 0); }
int cuOccupancyMaxActiveClusters(int *found) { return set(found, 1); }
int cuCtxGetLimit(size_t *found) { *found = 0; return 0; }
int cuCtxGetCurrent(void **found) { return point(found); }
int cuDevicePrimaryCtxRetain(void **found) { return point(found); }
int cuModuleLoadData(void **found) { return point(found); }
int cuModuleGetFunction(void **found) { return point(found); }

/* An H100's, as far as Triton asks: registers, multiprocessors, and the shared memory of a program in each way. */
int cuDeviceGetAttribute(int *found, int attribute) {
  return set(found, attribute == 12 ? REGISTERS : attribute == 16 ? 132 : attribute == 39 ? 2 * THREADS
             : attribute == 81 ? SHARED + 1024 : SHARED);
}

/* The threads that a program may have (0), its static shared memory, registers and others. */
int cuFuncGetAttribute(int *found, int attribute) { return set(found, attribute == 0 ? THREADS : 0); }

/* Where the memory of a pointer is on the device: where it is on the host. */
int cuPointerGetAttribute(unsigned long long *found, int attribute, unsigned long long at) {
  (void)attribute;
  *found = at;
  return 0;
}
