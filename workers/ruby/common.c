/* State of the process. */
#include "common.h"

VALUE komainu_module;
int is_copy;
