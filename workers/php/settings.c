/* Settings of the application, and of the .user.ini files in its directories. */
#include "settings.h"
#include "variables.h"

#include <strings.h>
#include <time.h>
#include <unistd.h>

/* Maximum number of settings of the application. */
#define NAMES_MAX 256
/* Maximum depth of a script below the root for .user.ini files, and maximum number of cached directories. */
#define FOLDERS_MAX 32
#define REMEMBERED_MAX 1024

typedef struct {
    char *name;
    int is_locked;
} Setting;

static Setting settings[NAMES_MAX];
static size_t setting_count;
static char *entries;
static size_t entries_len;

/* Appends a line to the settings with which PHP starts. */
static int add_entry(const char *name, size_t name_len, const char *value) {
    size_t len = name_len + strlen(value) + 1;
    char *room = realloc(entries, entries_len + len + 1);
    if (!room)
        return 0;
    entries = room;
    snprintf(entries + entries_len, len + 1, "%.*s%s\n", (int)name_len, name, value);
    entries_len += len;
    return 1;
}

int add_setting(const char *text, int is_locked) {
    if (setting_count == NAMES_MAX || !add_entry(text, strlen(text), ""))
        return 0;
    settings[setting_count].name = strndup(text, strcspn(text, "= "));
    settings[setting_count].is_locked = is_locked;
    return settings[setting_count++].name != NULL;
}

/* OPcache ignores TMPDIR: its lock file would be in /tmp, which a sandbox may make read-only. */
int add_temporary_folder(void) {
    static const char name[] = "opcache.lockfile_path=";
    const char *folder = getenv("TMPDIR");
    int is_usable = folder && !strpbrk(folder, "\"\n$") && access(folder, W_OK | X_OK) == 0;
    return !is_usable || add_entry(name, sizeof name - 1, folder);
}

char *settings_text(void) { return entries; }

/* Names in php.ini that are not settings. */
static int loads_extension(const char *name) {
    return strcasecmp(name, "extension") == 0 || strcasecmp(name, "zend_extension") == 0;
}

void finish_settings(void) {
    size_t at;
    for (at = 0; at < setting_count; at++) {
        const char *name = settings[at].name;
        zend_ini_entry *entry = zend_hash_str_find_ptr(EG(ini_directives), name, strlen(name));
        if (entry && settings[at].is_locked)
            entry->modifiable = ZEND_INI_SYSTEM;
        if (!entry && !loads_extension(name))
            fprintf(stderr, "PHP has no setting %s: is it misspelt, or of an extension that is not loaded?\n", name);
    }
}

/* ---- .user.ini ---- */

/* The settings of a directory, and the time when they were read. */
typedef struct {
    time_t read_s;
    HashTable settings;
} FolderSettings;

static HashTable folders;
static int has_folders;

static void free_folder_settings(zval *value) {
    FolderSettings *found = Z_PTR_P(value);
    zend_hash_destroy(&found->settings);
    free(found);
}

/* Returns the settings of a directory, cached for `user_ini.cache_ttl` seconds. */
static HashTable *settings_of(const char *folder, size_t len, time_t now_s) {
    FolderSettings *found;
    if (!has_folders) {
        zend_hash_init(&folders, 8, NULL, free_folder_settings, 1);
        has_folders = 1;
    }
    found = zend_hash_str_find_ptr(&folders, folder, len);
    if (found && found->read_s + PG(user_ini_cache_ttl) > now_s)
        return &found->settings;
    if (!found) {
        if (zend_hash_num_elements(&folders) >= REMEMBERED_MAX)
            zend_hash_clean(&folders);
        found = malloc(sizeof *found);
        if (!found)
            return NULL;
        zend_hash_init(&found->settings, 8, NULL, config_zval_dtor, 1);
        zend_hash_str_add_new_ptr(&folders, folder, len, found);
    } else {
        zend_hash_clean(&found->settings);
    }
    found->read_s = now_s;
    php_parse_user_ini_file(folder, PG(user_ini_filename), &found->settings);
    return &found->settings;
}

static void apply_folder(const char *folder, size_t len, time_t now_s) {
    HashTable *found = settings_of(folder, len, now_s);
    if (found && zend_hash_num_elements(found))
        php_ini_activate_config(found, PHP_INI_PERDIR, PHP_INI_STAGE_HTACCESS);
}

void apply_user_settings(void) {
    const Variable *root = variable_of("DOCUMENT_ROOT"), *script = variable_of("SCRIPT_FILENAME");
    char folder[MAXPATHLEN];
    size_t at, count = 0;
    time_t now_s;
    if (!PG(user_ini_filename) || !*PG(user_ini_filename) || !root || !script)
        return;
    if (script->value_len >= sizeof folder || strncmp(script->value, root->value, root->value_len) != 0)
        return;
    now_s = time(NULL);
    memcpy(folder, script->value, script->value_len + 1);
    for (at = root->value_len; at < script->value_len && count < FOLDERS_MAX; at++) {
        if (folder[at] != '/')
            continue;
        folder[at] = '\0';
        apply_folder(folder, at, now_s);
        folder[at] = '/';
        count++;
    }
}
