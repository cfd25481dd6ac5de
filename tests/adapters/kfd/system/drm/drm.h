/* <linux/kfd_ioctl.h> includes this header for the kernel's integer types only, and the package
   that ships it need not be installed. */
#include <linux/types.h>
