/* Everything of the driver API, each variant under the name that the library exports. */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <cudaProfiler.h>
#include <cudaGL.h>
#include <cudaEGL.h>

/* The VDPAU types that cudaVDPAU.h takes for granted. */
typedef uint32_t VdpStatus;
typedef uint32_t VdpDevice;
typedef uint32_t VdpFuncId;
typedef uint32_t VdpVideoSurface;
typedef uint32_t VdpOutputSurface;
typedef VdpStatus VdpGetProcAddress(VdpDevice device, VdpFuncId function, void **pointer);
#include <cudaVDPAU.h>
