/* Settings of the application, and of the .user.ini files in its directories. */
#ifndef KOMAINU_SETTINGS_H
#define KOMAINU_SETTINGS_H

#include "common.h"

/* Adds a setting in php.ini syntax; `is_locked` if scripts may not change it. Returns 0 if out of memory. */
int add_setting(const char *text, int is_locked);
/* Makes OPcache use the temporary directory. Returns 0 if out of memory. */
int add_temporary_folder(void);
/* The settings, for `sapi_module_struct.ini_entries`. */
char *settings_text(void);
/* Called after PHP has started: locks settings, and reports names unknown to PHP. */
void finish_settings(void);
/* Applies the `.user.ini` files from the root to the script's directory. */
void apply_user_settings(void);

#endif
