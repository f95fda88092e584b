/* Everything of NVML, each variant under the name that the library exports. */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>
