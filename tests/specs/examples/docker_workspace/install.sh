# tools/installers/install.sh
# Usage: install.sh <type> <package>
# Types: apt, pip, npm
# Returns: 0 on success, 1 on rejection, 2 on failure

install_package() {
    local pkg_type=$1
    local pkg_name=$2
    
    # Allowlist検証
    if ! is_allowed "$pkg_type" "$pkg_name"; then
        log_install "$pkg_type" "$pkg_name" "rejected"
        return 1
    fi
    
    # インストール実行
    case "$pkg_type" in
        apt) sudo apt-get install -y "$pkg_name" ;;
        pip) pip install "$pkg_name" ;;
        npm) npm install "$pkg_name" ;;
    esac
    
    # 結果ログ
    if [ $? -eq 0 ]; then
        log_install "$pkg_type" "$pkg_name" "success"
        return 0
    else
        log_install "$pkg_type" "$pkg_name" "failed"
        return 2
    fi
}
